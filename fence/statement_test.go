package fence_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
)

// recorder keeps what it is sent.
type recorder struct {
	sql  string
	args []any
}

func (r *recorder) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	r.sql, r.args = sql, args
	return nil, errNoDatabase
}

// One text for each set of columns, whatever the values: connections remember what they know of a text. Values and names
// travel apart, and names are quoted.
func TestStatementText(t *testing.T) {
	t.Parallel()
	table := fence.Table{Name: `Billing."In""voices"`, Key: []string{"b", "a"}}
	texts := map[string]bool{}
	for n := range 20 {
		var r recorder
		row := fence.Row{"a": n, "b": "'; DROP", "{table}": n, `d"`: n, "c": n}
		_ = table.Upsert(t.Context(), &r, grant(fence.Token(n+1)), row)
		texts[r.sql] = true
		if r.args[0] != pgx.QueryExecModeCacheDescribe {
			t.Fatalf("sent with mode %v", r.args[0])
		}
		if got, want := fmt.Sprint(r.args[1:]), fmt.Sprintf(`[%d "billing"."In""voices" %d '; DROP %d %d %d billing 0]`, n+1, n, n, n, n); got != want {
			t.Fatalf("arguments %s, want %s", got, want)
		}
	}
	if len(texts) != 1 {
		t.Fatalf("%d texts for one set of columns", len(texts))
	}
	for sql := range texts {
		for _, part := range []string{`INTO "billing"."In""voices" AS t ("a", "b", "c", "d""", "{table}", "fencing_token")`, `ON CONFLICT ("a", "b")`} {
			if !strings.Contains(sql, part) {
				t.Errorf("no %s in\n%s", part, sql)
			}
		}
		if strings.Contains(sql, "DROP") {
			t.Errorf("a value stands in\n%s", sql)
		}
	}
}
