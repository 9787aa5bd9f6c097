package fence_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// refuses answers everything with one error of PostgreSQL.
type refuses pgconn.PgError

func (r *refuses) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, (*pgconn.PgError)(r)
}

// PostgreSQL has no field for the name of what is missing: it stands in the message, in the server's language. A name that
// only has ours in it is somebody else's.
func TestWhatIsMissingIsToldByItsWholeName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code, message string
		ours          bool
	}{
		{"3F000", `schema "pglock" does not exist`, true},
		{"3F000", `Schema »pglock« existiert nicht`, true},
		{"3F000", "le schéma «\u00a0pglock\u00a0» n'existe pas", true},
		{"3F000", `スキーマ"pglock"は存在しません`, true},
		{"3F000", `schema "pglock_app" does not exist`, false},
		{"3F000", `schema "my pglock" does not exist`, false},
		{"3F000", `schema "pglock-app" does not exist`, false},
		{"3F000", `schema "pglock_app" is not "pglock"`, true}, // it looks on after a name that is longer
		{"42883", `function pglock.fence_raise(text, text, integer, bigint) does not exist`, true},
		{"42883", `関数pglock.fence_credible(text, integer, bigint)は存在しません`, true},
		{"42883", `function my_pglock.fence_raise(text, text, integer, bigint) does not exist`, false},
		{"42883", `function app.fence_raise(text, text, integer, bigint) does not exist`, false},
		{"42883", `function pglock.fence_raiser(text) does not exist`, false},
		{"42P01", `relation "pglock.fences" does not exist`, true},
		{"42P01", `relation "pglock.leases" does not exist`, true},
		{"42P01", `relation "pglock_app.fences" does not exist`, false},
		{"42P01", `relation "app.fences" does not exist`, false},
		{"42P01", `relation "pglock.fences_app" does not exist`, false},
		{"23505", `schema "pglock" does not exist`, false},
	} {
		db := &refuses{Code: tt.code, Message: tt.message}
		err := invoices.Update(t.Context(), db, grant(7), invoice(1, "x"))
		if errors.Is(err, fence.ErrNotMigrated) != tt.ours || sqlState(err) != tt.code {
			t.Errorf("%s: %v, want ErrNotMigrated %v beside %s", tt.message, err, tt.ours, tt.code)
		}
	}
}

// Where two locks write one row, each refusal looks as if its lock had been lost, and nothing else tells of the mistake.
func TestAStaleRowTellsOfTheOtherCause(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 8)`)
	err := invoices.Update(t.Context(), d.Pool(t), grant(7), invoice(1, "x"))
	wantStale(t, "Update", err, 8)
	if err == nil || !strings.Contains(err.Error(), "under another lock") {
		t.Errorf("%v, want the other cause named", err)
	}
}

// The same for what has another cure.
func TestCureIsGivenForTheWholeNameOnly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ code, message, cure string }{
		{"42501", `permission denied for schema pglock`, "grant_locker"},
		{"42501", `スキーマpglockへのアクセスが拒否されました`, "grant_locker"},
		{"42501", `permission denied for function fence_row_lock`, "grant_locker"},
		{"42501", `permission denied for schema pglock_app`, ""},
		{"42501", `permission denied for table fence_log`, ""},
		{"42703", `column "fencing_token" of relation "invoices" does not exist`, "ADD COLUMN"},
		{"42703", `column t.fencing_token does not exist`, "ADD COLUMN"},
		{"42703", `column "fencing_token_old" of relation "invoices" does not exist`, ""},
		{"42703", `column "old_fencing_token" of relation "invoices" does not exist`, ""},
		{"42501", `permission denied for table invoices`, "SELECT"},
		{"42501", `нет доступа к таблице invoices`, "SELECT"},
		{"42501", `permission denied for table invoices_log`, ""},
		{"22003", `integer out of range`, `the column for the token must be a bigint`},
	} {
		plain := "fence: update of invoices id=1: " + (&pgconn.PgError{Code: tt.code, Message: tt.message}).Error()
		err := invoices.Update(t.Context(), &refuses{Code: tt.code, Message: tt.message}, grant(7), invoice(1, "x"))
		if tt.cure == "" && err.Error() != plain || !strings.Contains(err.Error(), tt.cure) {
			t.Errorf("%v, want the cure %q", err, tt.cure)
		}
	}
}
