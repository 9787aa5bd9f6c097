package billing_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/examples/billing"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestBill(t *testing.T) {
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE invoices (id bigint PRIMARY KEY, total int, fencing_token bigint);
		INSERT INTO invoices VALUES (42, 0, NULL)`)
	pool := d.Pool(t)
	replicas := make(chan error)
	for range 3 {
		go func() { replicas <- replica(t.Context(), pool) }()
	}
	for range 3 {
		if err := <-replicas; err != nil {
			t.Error(err)
		}
	}
	if total := pgtest.Query[int](t, d, `SELECT total FROM invoices WHERE fencing_token > 0`); total != 120 {
		t.Errorf("total = %d, want 120", total)
	}
}

func replica(ctx context.Context, pool *pgxpool.Pool) error {
	locks, err := billing.Start(ctx, pool)
	if err != nil {
		return err
	}
	return errors.Join(billing.Bill(ctx, pool, locks), locks.Close(ctx))
}

// The README shows what compiles and runs here, to the letter.
func TestReadmeShowsThisFile(t *testing.T) {
	code, err := os.ReadFile("billing.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```go\n"+string(code)+"```\n") {
		t.Error("the program in README.md is not examples/billing/billing.go")
	}
	if lines := strings.Count(string(code), "\n"); lines > 25 {
		t.Errorf("the program has %d lines, want 25 at most", lines)
	}
}
