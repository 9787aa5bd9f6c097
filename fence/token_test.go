package fence_test

import (
	"errors"
	"slices"
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
		wantStale(t, "Tx", fence.Tx(t.Context(), conn, tt.grant, "report", nil), 9)
		if !slices.Equal(told, tt.want) {
			t.Errorf("Tx told %q, want %q", told, tt.want)
		}
	}
}
