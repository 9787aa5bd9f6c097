package fence_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// pglock ends the lease in a handler of its own. One that is added must not take its place.
func TestEveryStaleHandlerIsCalledTheEarlierFirst(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 9)`)
	conn := d.Conn(t)
	commit(t, raised(t, conn, pgx.ReadCommitted, grant(9)))
	var told []string
	note := func(who string) func(error) {
		return func(err error) {
			if !errors.Is(err, fence.ErrStale) {
				t.Errorf("%s was told %v", who, err)
			}
			told = append(told, who)
		}
	}
	lease := grant(7).OnStale(note("lease"))
	both := lease.OnStale(nil).OnStale(note("caller"))
	other := lease.OnStale(note("other")) // does not change the grant it came from, nor its other copies
	for _, tt := range []struct {
		grant fence.Grant
		want  []string
	}{
		{lease, []string{"lease"}},
		{both, []string{"lease", "caller"}},
		{other, []string{"lease", "other"}},
	} {
		told = nil
		wantStale(t, "update", invoices.Update(t.Context(), conn, tt.grant, invoice(1, "late")), 9)
		if !slices.Equal(told, tt.want) {
			t.Errorf("told %q, want %q", told, tt.want)
		}
		told = nil
		wantStale(t, "Tx", fence.Tx(t.Context(), conn, tt.grant, "report", nothing), 9)
		if !slices.Equal(told, tt.want) {
			t.Errorf("Tx told %q, want %q", told, tt.want)
		}
	}
}

// Whatever a grant is asked before it writes, all of it must be content.
func TestAGrantThatWasGivenUpSendsNothing(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	g := fence.Grant{Lock: "billing", Token: 1}.While(nil)
	var answers [2]error
	g = g.While(func() error { return answers[0] }).While(func() error { return answers[1] })
	for _, answers = range [][2]error{{first, nil}, {nil, second}, {first, second}} {
		want := answers[0]
		if want == nil {
			want = answers[1]
		}
		for verb, err := range map[string]error{
			"Tx":     fence.Tx(t.Context(), silent{t}, g, "r", func(pgx.Tx) error { return nil }),
			"Update": invoices.Update(t.Context(), silent{t}, g, fence.Row{"id": 1, "status": "paid"}),
		} {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), `"billing"`) {
				t.Errorf("%s with %v = %v, want %v and the lock's name", verb, answers, err, want)
			}
		}
	}
}
