package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	once := flag.Bool("once", true, "send a mail once; without it each delivery sends one")
	fenced := flag.Bool("fence", true, "write under the fence; without it the late write gets in")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeoutCause(ctx, 50*time.Second, errors.New("the story has not ended within 50 s"))
	t := &timeline{start: time.Now()}
	t.tell("database", "is starting")
	err := withDatabase(ctx, func(server string, pool *pgxpool.Pool) error {
		t.tell("database", "is ready: %s", server)
		s := &story{timeline: t, pool: pool, bank: &bank{}, mail: &mailer{}}
		return withReplicas(ctx, s, *once, *fenced, func(urls []string) error {
			s.urls = urls
			return s.play(ctx)
		})
	})
	err = cmp.Or(context.Cause(ctx), err) // a ^C says more than what followed from it
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "webhook:", err)
		os.Exit(1)
	}
}

// A timeline prints who does what, and when since the beginning.
type timeline struct {
	mu    sync.Mutex
	start time.Time
}

func (t *timeline) tell(actor, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Printf("%6.2f s  %-9s  %s\n", time.Since(t.start).Seconds(), actor, fmt.Sprintf(format, args...))
}

// A story is told by waiting for what happens, never for "a while".
type story struct {
	*timeline
	pool *pgxpool.Pool
	bank *bank
	mail *mailer
	urls []string // of the replicas A, B and C
}

// again is how long the bank waits before it delivers what was not taken once more.
const again = 100 * time.Millisecond

func (s *story) play(ctx context.Context) error {
	for _, scene := range []func(context.Context) error{s.onePayment, s.twoStatuses} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	fmt.Println("\nA key, or once, is against the same event twice. A fence is against a writer that comes late.")
	return nil
}

// onePayment is delivered twice to each replica, all at once, and once more when all is done.
func (s *story) onePayment(ctx context.Context) error {
	paid := event{ID: "evt_1", Created: time.Now(), Kind: "payment", Invoice: 42, Amount: 100}
	s.tell("bank", "delivers %s, a payment of %d, %d times at once, to %d replicas", paid.ID, paid.Amount, 2*len(s.urls), len(s.urls))
	ended := make(chan error, 2*len(s.urls))
	for _, url := range append(s.urls, s.urls...) {
		go func() { ended <- s.untilTaken(ctx, url, paid) }()
	}
	var errs []error
	for range cap(ended) {
		errs = append(errs, <-ended)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.tell("bank", "delivers it once more: an answer may have been lost")
	if err := s.untilTaken(ctx, s.urls[0], paid); err != nil {
		return err
	}
	_, credit, err := s.invoice(ctx)
	if err != nil {
		return err
	}
	s.tell("database", "the invoice has a credit of %d", credit)
	s.tell("mail", "was sent: %d", s.mail.count())
	return verdictOnce(credit, paid.Amount, s.mail.count())
}

// twoStatuses come one after the other. The first is asked for by replica A, which is suspended before it writes.
func (s *story) twoStatuses(ctx context.Context) error {
	asked, letGo := s.bank.set("paid", true)
	defer letGo()
	first := event{ID: "evt_2", Created: time.Now(), Kind: "status", Invoice: 42}
	s.tell("bank", "the invoice is now %q; delivers %s to replica A", "paid", first.ID)
	type delivery struct {
		answer string
		taken  bool
		err    error
	}
	late := make(chan delivery, 1)
	go func() {
		_, answer, taken, err := deliver(ctx, s.urls[0], first)
		late <- delivery{answer, taken, err}
	}()
	select {
	case <-asked:
	case d := <-late:
		return fmt.Errorf("replica A has not asked for the status: %s %v", d.answer, d.err)
	}
	s.tell("replica A", "has asked for the status, and is suspended: nobody renews its lease")

	s.bank.set("refunded", false)
	second := event{ID: "evt_3", Created: time.Now(), Kind: "status", Invoice: 42}
	s.tell("bank", "the invoice is now %q; delivers %s to replica B", "refunded", second.ID)
	if err := s.untilTaken(ctx, s.urls[1], second); err != nil {
		return err
	}
	if _, err := s.look(ctx); err != nil {
		return err
	}

	s.tell("replica A", "goes on, and writes what it was told before")
	letGo()
	d := <-late
	if d.err != nil {
		return d.err
	}
	s.tell("replica A", "answers %s", d.answer)
	status, err := s.look(ctx)
	if err != nil {
		return err
	}
	if err := verdictFence(status, d.taken); err != nil {
		return err
	}
	s.tell("bank", "delivers %s again, since it was not taken", first.ID)
	if err := s.untilTaken(ctx, s.urls[2], first); err != nil {
		return err
	}
	status, err = s.look(ctx)
	if err != nil {
		return err
	}
	return verdictFence(status, false)
}

// untilTaken delivers an event until it is taken.
func (s *story) untilTaken(ctx context.Context, url string, e event) error {
	for {
		replica, answer, taken, err := deliver(ctx, url, e)
		if err != nil {
			return err
		}
		s.tell(replica, "answers %s", answer)
		if taken {
			return nil
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *story) invoice(ctx context.Context) (status string, credit int, err error) {
	err = s.pool.QueryRow(ctx, `SELECT status, credit FROM invoices WHERE id = 42`).Scan(&status, &credit)
	return status, credit, err
}

func (s *story) look(ctx context.Context) (status string, err error) {
	status, _, err = s.invoice(ctx)
	if err == nil {
		s.tell("database", "the invoice is %q", status)
	}
	return status, err
}

// verdictOnce is what became of the payment.
func verdictOnce(credit, amount, mails int) error {
	switch {
	case credit != amount:
		return fmt.Errorf("the invoice has a credit of %d, want %d", credit, amount)
	case mails != 1:
		return fmt.Errorf("the mail was sent %d times", mails)
	}
	return nil
}

// verdictFence is what became of the late write. It believes the row first, and only then the answer.
func verdictFence(status string, taken bool) error {
	switch {
	case status != "refunded":
		return fmt.Errorf("the late write of replica A got in: the invoice is %q", status)
	case taken:
		return errors.New("the row is right, but replica A says that it has written")
	}
	return nil
}
