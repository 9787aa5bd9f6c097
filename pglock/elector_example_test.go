package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Each replica of a service runs this; one at a time keeps the rates. An orderly end of the process (ctx) gives the lead away
// once the last write is done.
func ExampleElector_Run() {
	keepRates := func(ctx context.Context, pool *pgxpool.Pool, locks *pglock.Client, next func(context.Context) (fence.Row, error)) error {
		elector, err := pglock.NewElector(locks, "rates-keeper", pglock.ElectorConfig{})
		if err != nil {
			return err
		}
		http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
			if err := elector.Health(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			}
		})
		rates := fence.Table{Name: "rates", Key: []string{"currency"}}
		err = elector.Run(ctx, func(ctx context.Context, l *pglock.Lease) error {
			for {
				row, err := next(ctx) // ends with ctx, and so does the term
				if err != nil {
					return err
				}
				if err := rates.Upsert(ctx, pool, l.Grant(), row); err != nil {
					return err
				}
			}
		})
		if errors.Is(err, context.Cause(ctx)) {
			return nil
		}
		return err
	}
	_ = keepRates
}

// Who leads? A node that only looks on needs not run.
func ExampleElector_Observe() {
	follow := func(ctx context.Context, elector *pglock.Elector) {
		for leader, err := range elector.Observe(ctx) {
			switch {
			case errors.Is(err, pglock.ErrNoLeader):
				fmt.Println("nobody leads")
			case err != nil:
				fmt.Println("not known:", err)
			default:
				fmt.Println(leader.Owner, "leads since", leader.Since)
			}
		}
	}
	_ = follow
}

// A bad configuration is known at once, without a database.
func ExampleNewElector() {
	locks, err := pglock.Open("postgres://localhost/app", pglock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(context.Background()) //nolint:errcheck // it holds nothing
	_, err = pglock.NewElector(locks, "", pglock.ElectorConfig{})
	fmt.Println(errors.Is(err, pglock.ErrInvalidName))
	// Output: true
}
