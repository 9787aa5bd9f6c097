package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/once"
)

// An event is what the bank posts. ID and Created are the same in every delivery.
type event struct {
	ID      string
	Created time.Time
	Kind    string // payment or status
	Invoice int
	Amount  int
}

// invoices is a table of the user, with a column for the token of its last writer: fencing_token bigint.
var invoices = fence.Table{Name: "invoices", Key: []string{"id"}}

// A shop is one replica.
type shop struct {
	name  string
	pool  *pgxpool.Pool
	locks *pglock.Client
	runs  *once.Runner
	bank  interface {
		status(context.Context) (string, error)
	}
	mail interface {
		send(context.Context, string) error
	}
	once     bool // false: as programs do that hope for one delivery
	fenced   bool // false: as programs do that trust their lock alone
	sluggish bool // it is suspended while it asks the bank: nobody renews its lease, and it does not see its ctx end
}

// ServeHTTP answers so that the bank delivers again what was not done.
func (s *shop) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var e event
	if err := json.NewDecoder(req.Body).Decode(&e); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Replica", s.name)
	handle := map[string]func(context.Context, event) error{"payment": s.payment, "status": s.status}[e.Kind]
	if handle == nil {
		http.Error(w, "unknown kind of event", http.StatusBadRequest)
		return
	}
	switch err := handle(req.Context(), e); {
	case err == nil:
		fmt.Fprint(w, "done")
	case errors.Is(err, once.ErrRan):
		fmt.Fprint(w, "known: ", err) // a mail that has failed is not sent again: who reads the record may judge
	default: // once.ErrRunning as well: the one that is at it may fail
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// payment credits an invoice, and confirms that by mail.
func (s *shop) payment(ctx context.Context, e event) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO payments (event) VALUES ($1) ON CONFLICT DO NOTHING`, e.ID)
		if err != nil || tag.RowsAffected() == 0 { // it was credited before, with this very row
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE invoices SET credit = credit + $2 WHERE id = $1`, e.Invoice, e.Amount)
		return err
	})
	if err != nil {
		return err
	}
	// Also where the credit was there before: the replica that has made it may have died before it sent the mail.
	text := fmt.Sprintf("thank you for %d", e.Amount)
	if !s.once {
		return s.mail.send(ctx, text)
	}
	return s.runs.Run(ctx, "receipt/"+e.ID, e.Created, func(ctx context.Context, _ *pglock.Lease) error {
		return s.mail.send(ctx, text)
	})
}

// status asks the bank what holds now, since events may come late and in any order, and writes it. That can be done again, so
// that what has failed is retried.
func (s *shop) status(ctx context.Context, e event) error {
	return s.runs.Run(ctx, "status/"+e.ID, e.Created, func(ctx context.Context, _ *pglock.Lease) error {
		return s.refresh(ctx, e.Invoice)
	}, once.Retry())
}

func (s *shop) refresh(ctx context.Context, invoice int) error {
	var opts []pglock.Option
	if s.sluggish {
		opts = append(opts, pglock.NoRenewal(), pglock.TTL(4*time.Second)) // short, to see it lapse soon
	}
	return s.locks.Do(ctx, fmt.Sprintf("invoice-%d", invoice), func(ctx context.Context, lease *pglock.Lease) error {
		if s.sluggish {
			ctx = context.WithoutCancel(ctx)
		}
		status, err := s.bank.status(ctx)
		if err != nil {
			return err
		}
		if !s.fenced {
			_, err := s.pool.Exec(ctx, `UPDATE invoices SET status = $2 WHERE id = $1`, invoice, status)
			return err
		}
		return invoices.Update(ctx, s.pool, lease.Grant(), fence.Row{"id": invoice, "status": status})
	}, opts...)
}
