package fence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Tables of every layout, with one row each, whose customer is 1.
const createLayouts = `
	CREATE TABLE parents (id int PRIMARY KEY); INSERT INTO parents VALUES (1);
	CREATE TABLE plain (id int PRIMARY KEY, customer int, note text, parent int REFERENCES parents ON DELETE CASCADE);
	CREATE TABLE parted (LIKE plain INCLUDING ALL, FOREIGN KEY (parent) REFERENCES parents ON DELETE CASCADE) PARTITION BY RANGE (id);
	CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
	CREATE TABLE parted_1a PARTITION OF parted_1 FOR VALUES FROM (0) TO (100);
	CREATE TABLE base (LIKE plain INCLUDING ALL);
	CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (base);
	INSERT INTO plain VALUES (1, 1, 'old', 1);
	INSERT INTO parted VALUES (1, 1, 'old', 1);
	INSERT INTO base VALUES (1, 1, 'old', 1); INSERT INTO heir VALUES (1, 1, 'old', 1);`

// What comes after the protection.
const attachLater = `
	CREATE TABLE parted_2 (LIKE parted INCLUDING ALL); INSERT INTO parted_2 VALUES (101, 1, 'old', 1);
	ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES FROM (100) TO (200)`

// layouts are what is written to: a table, and the id of the row in it.
var layouts = []struct {
	table string
	id    int
}{{"plain", 1}, {"parted", 1}, {"parted", 101}, {"parted_1", 1}, {"parted_1a", 1}, {"parted_2", 101}, {"base", 1}, {"heir", 1}}

// waysToWrite are all ways to write to table {table}, where row {id} is.
var waysToWrite = map[string]string{
	"INSERT":         `INSERT INTO {table} VALUES ({id} + 1, 1, 'new')`,
	"UPDATE":         `UPDATE {table} SET note = 'new' WHERE id = {id}`,
	"DELETE":         `DELETE FROM {table} WHERE id = {id}`,
	"upsert inserts": `INSERT INTO {table} VALUES ({id} + 1, 1, 'new') ON CONFLICT (id) DO UPDATE SET note = 'new'`,
	"upsert updates": `INSERT INTO {table} VALUES ({id}, 1, 'new') ON CONFLICT (id) DO UPDATE SET note = 'new'`,
	"MERGE updates":  `MERGE INTO {table} t USING (VALUES ({id})) s(id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET note = 'new'`,
	"MERGE deletes":  `MERGE INTO {table} t USING (VALUES ({id})) s(id) ON t.id = s.id WHEN MATCHED THEN DELETE`,
	"MERGE inserts":  `MERGE INTO {table} t USING (VALUES ({id} + 1)) s(id) ON t.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, 1)`,
	"in a CTE":       `WITH w AS (UPDATE {table} SET note = 'new' WHERE id = {id} RETURNING id) SELECT count(*) FROM w`,
	"cascade":        `DELETE FROM parents`,
	"TRUNCATE":       `TRUNCATE {table}`,
	"COPY":           `COPY {table} (id, customer) FROM STDIN`,
}

// writeBy writes in one of these ways and returns the SQLSTATE.
func writeBy(ctx context.Context, tx pgx.Tx, way, table string, id int) string {
	sql := strings.NewReplacer("{table}", table, "{id}", fmt.Sprint(id)).Replace(waysToWrite[way])
	if way == "COPY" {
		_, err := tx.Conn().PgConn().CopyFrom(ctx, strings.NewReader(fmt.Sprintf("%d\t1\n", id+1)), sql)
		return sqlState(err)
	}
	_, err := tx.Exec(ctx, sql)
	return sqlState(err)
}

// said is what a transaction has said before it writes, and what becomes of the write. The fences stand at token 7 of
// "billing".
var said = []struct{ name, sql, want string }{
	{"nothing", ``, "FL001"},
	{"a live grant", `SELECT pglock.fence_state('billing', 0, 7)`, ""},
	{"a later grant", `SELECT pglock.fence_state('billing', 0, 8)`, ""},
	{"a stale grant", `SELECT pglock.fence_state('billing', 0, 6)`, "FL002"},
	{"a stale grant after a live one", `SELECT pglock.fence_state('billing', 0, 7), pglock.fence_state('billing', 0, 6)`, "FL002"},
	{"another lock", `SELECT pglock.fence_state('other', 0, 9)`, "FL004"},
	{"another slot", `SELECT pglock.fence_state('billing', 1, 9)`, "FL004"},
	{"a token that was never drawn", `SELECT set_config('fencedlock.grant', pglock.stated_grant('billing', 0, 9007199254740991), true)`, "FL005"},
	{"a token that its lock has not reached", `SELECT set_config('fencedlock.grant', pglock.stated_grant('known', 0, 99), true)`, "FL005"},
	{"the session's setting of an earlier transaction", `SELECT set_config('fencedlock.grant', (SELECT value FROM earlier), false)`, "FL001"},
	{"a grant of another schema", `SELECT set_config('fencedlock.grant', regexp_replace(pglock.stated_grant('billing', 0, 7), '^\d+', '1'), true)`, "FL001"},
	{"no transaction", `SELECT set_config('fencedlock.grant', 'pglock'::regnamespace::oid || ' 0 7 billing', true)`, "FL001"},
	{"rubbish", `SELECT set_config('fencedlock.grant', repeat('1 ', 40), true)`, "FL001"},
}

// waysToProtect are the two ways to protect a table.
var waysToProtect = map[string]func(context.Context, fence.DB, string) error{
	"table": func(ctx context.Context, db fence.DB, table string) error { return fence.Protect(ctx, db, table) },
	"rows": func(ctx context.Context, db fence.DB, table string) error {
		return fence.ProtectRows(ctx, db, table, "customer")
	},
}

// protected makes the tables of createLayouts in a database of the test's own, protects them, and takes their fences to
// token 7.
func protected(t *testing.T, how string) *pgtest.Database {
	t.Helper()
	d := pgtest.DB(t)
	d.Exec(t, createLayouts)
	conn := d.Conn(t)
	for _, table := range []string{"plain", "parted", "base"} {
		wantErr(t, "protect", waysToProtect[how](t.Context(), conn, table), nil)
	}
	d.Exec(t, attachLater)
	d.Exec(t, `INSERT INTO pglock.leases (name, token) VALUES ('known', 20);
		BEGIN; SELECT pglock.fence_state('billing', 0, 7);
		UPDATE plain SET note = ''; UPDATE parted SET note = ''; UPDATE base SET note = '';
		CREATE TABLE earlier AS SELECT current_setting('fencedlock.grant') AS value; COMMIT`)
	return d
}

func TestProtectedTableRefusesEveryWriteWithoutALiveGrant(t *testing.T) {
	t.Parallel()
	for how := range waysToProtect {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := protected(t, how)
			conn := d.Conn(t)
			merges := pgtest.Query[int](t, d, `SELECT current_setting('server_version_num')::int`) >= 150000
			for _, replica := range []bool{false, true} {
				exec(t, conn, fmt.Sprintf(`SET session_replication_role = %s`, map[bool]string{false: "origin", true: "replica"}[replica]))
				for _, l := range layouts {
					fewer := replica || l.table != "plain" && l.table != "parted"
					for way := range waysToWrite {
						switch {
						case strings.HasPrefix(way, "MERGE") && !merges,
							way == "cascade" && (replica || l.table != "plain" && l.table != "parted"), // no foreign key, or it is off
							way == "TRUNCATE" && l.table == "parted_2":                                 // see TestVerifyFindsWhatIsMissing
							continue
						}
						for _, s := range said {
							if fewer && s.name != "nothing" && s.name != "a live grant" && s.name != "a stale grant" {
								continue // whether the triggers fire is all there is to see
							}
							want := s.want
							if way == "TRUNCATE" && how == "rows" && want != "FL001" {
								want = "FL006"
							}
							tx := begun(t, conn, s.sql)
							if got := writeBy(t.Context(), tx, way, l.table, l.id); got != want {
								t.Errorf("%s of %s under %s (replica: %t): %q, want %q", way, l.table, s.name, replica, got, want)
							}
							rollback(t, tx)
						}
					}
				}
			}
		})
	}
}

// begun begins a transaction and runs a statement in it, if there is one.
func begun(t *testing.T, conn *pgx.Conn, sql string) pgx.Tx {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, sql)
	return tx
}

// Reading needs no grant, nor does locking rows to read them.
func TestProtectedTableIsReadFreely(t *testing.T) {
	t.Parallel()
	d := protected(t, "rows")
	d.Exec(t, `SELECT FROM plain FOR UPDATE; SELECT FROM parted FOR KEY SHARE; LOCK TABLE base IN SHARE MODE`)
}

// A statement that writes no row is refused like any other: what a program may do does not hang on the data.
func TestStatementWithoutRowsIsRefused(t *testing.T) {
	t.Parallel()
	d := protected(t, "rows")
	conn := d.Conn(t)
	for _, table := range []string{"plain", "parted", "base"} {
		if _, err := conn.Exec(t.Context(), `DELETE FROM `+table+` WHERE false`); sqlState(err) != "FL001" {
			t.Errorf("%s: %v, want FL001", table, err)
		}
	}
}

// A grant that is stated is worth nothing to whoever has the connection next.
func TestStatementEndsWithItsTransaction(t *testing.T) {
	t.Parallel()
	d := protected(t, "table")
	conn := d.Conn(t)
	tx := begun(t, conn, `SELECT 1`)
	wantErr(t, "State", fence.State(t.Context(), tx, grant(7)), nil)
	exec(t, tx, `UPDATE plain SET note = 'mine'`)
	commit(t, tx)
	for _, sql := range []string{`SELECT 1`, `SELECT pglock.fence_state('billing', 0, 7)`} { // by itself a transaction of its own
		exec(t, conn, sql)
		_, err := conn.Exec(t.Context(), `UPDATE plain SET note = 'theirs'`)
		wantErr(t, "the next caller", fence.Explain(err), fence.ErrNotStated)
		var left string
		if err := conn.QueryRow(t.Context(), `SELECT current_setting('fencedlock.grant', true)`).Scan(&left); err != nil || left != "" {
			t.Errorf("the session still says %q, %v", left, err)
		}
	}
}

func TestSavepointGivesTheStatementBack(t *testing.T) {
	t.Parallel()
	d := protected(t, "table")
	conn := d.Conn(t)
	tx := begun(t, conn, `SAVEPOINT a; SELECT pglock.fence_state('billing', 0, 8); UPDATE plain SET note = 'x'; ROLLBACK TO a`)
	defer rollback(t, tx)
	// The fence is as before too, and nobody waits for it.
	other := begun(t, d.Conn(t), `SELECT pglock.fence_state('billing', 0, 7); UPDATE plain SET note = 'y'`)
	rollback(t, other)
	_, err := tx.Exec(t.Context(), `UPDATE plain SET note = 'z'`)
	wantErr(t, "after the rollback", fence.Explain(err), fence.ErrNotStated)
}

// Once for each statement, and for each row, the fence is looked at; once for each transaction, at most, it is written.
func TestRepeatedStatementsWriteTheFenceOnce(t *testing.T) {
	t.Parallel()
	for how := range waysToProtect {
		t.Run(how, func(t *testing.T) {
			d := protected(t, how)
			conn := d.Conn(t)
			tx := begun(t, conn, `SELECT pglock.fence_state('billing', 0, 8); UPDATE plain SET note = 'x'`)
			defer rollback(t, tx)
			where := func() (s string) {
				const sql = `SELECT string_agg(ctid::text, ' ' ORDER BY relation, resource) FROM pglock.fences`
				if err := tx.QueryRow(t.Context(), sql).Scan(&s); err != nil {
					t.Fatal(err)
				}
				return s
			}
			before := where()
			for range 5 {
				exec(t, tx, `UPDATE plain SET note = 'y'`)
				exec(t, tx, `INSERT INTO plain SELECT g, 1 FROM generate_series(10, 40) g; DELETE FROM plain WHERE id >= 10`)
			}
			if after := where(); after != before {
				t.Errorf("the fences moved from %s to %s", before, after)
			}
		})
	}
}

// The fences of a table are none of the tombstones of its rows, and none of the resources.
func TestFencesOfATableMeetNoOthers(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	wantErr(t, "protect", fence.ProtectRows(t.Context(), conn, "invoices", "id"), nil)
	state := func(g fence.Grant) pgx.Tx {
		tx := begun(t, conn, ``)
		wantErr(t, "State", fence.State(t.Context(), tx, g), nil)
		return tx
	}
	tx := state(grant(7))
	wantErr(t, "insert", invoices.Insert(t.Context(), tx, grant(7), invoice(1, "x")), nil)
	wantErr(t, "delete", invoices.Delete(t.Context(), tx, grant(7), key(1), fence.Again()), nil)
	wantErr(t, "delete", invoices.Delete(t.Context(), tx, grant(7), key(1), fence.Again()), nil)
	commit(t, tx)
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.fences WHERE resource <> ''`); n != 2 {
		t.Errorf("%d fences, want the tombstone and the table's", n)
	}
	tx = state(grant(8))
	wantErr(t, "insert", invoices.Insert(t.Context(), tx, grant(8), invoice(1, "x")), nil)
	commit(t, tx)
	if got := tombstones(t, d); got != "8" {
		t.Errorf("fences at %s, want the table's at 8 alone", got)
	}
}

// The way that the README and the refusal's hint give to somebody at psql: no token is at hand, and the holder must be out of the way.
func TestAProtectedTableIsRepairedByHand(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; SELECT pglock.protect('invoices')`)
	ctx, pool := bounded(t), d.Pool(t)
	token := pgtest.Query[fence.Token](t, d, `SELECT token FROM pglock.acquire(ARRAY['billing'], ARRAY[gen_random_uuid()], 'a holder', ARRAY[100000])`)
	insert := func(id int) error {
		return fence.StatedTx(ctx, pool, grant(token), func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO invoices VALUES ($1, 'wrong')`, id)
			return err
		})
	}
	wantErr(t, "the holder's write", insert(1), nil)
	byHand := pgtest.Query[fence.Token](t, d, `CALL pglock.revoke_lock('billing')`)
	d.Exec(t, fmt.Sprintf(`BEGIN; SELECT pglock.fence_state('billing', 0, %d); UPDATE invoices SET status = 'right'; COMMIT`, byHand))
	wantStale(t, "the holder's next write", insert(2), byHand)
	if got := pgtest.Query[string](t, d, `SELECT string_agg(status, ' ') FROM invoices`); got != "right" {
		t.Errorf("rows are %q, want the repaired one alone", got)
	}
}

// A fence belongs to the lock that has raised it first, a mistyped one perhaps. Its owner can give it away, with what it remembers.
func TestAFenceIsGivenToAnotherLock(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	d.Exec(t, `INSERT INTO pglock.leases (name, token, expires_at) VALUES ('b''ill', 9, clock_timestamp() + interval '1 h')`)
	ctx, pool := bounded(t), d.Pool(t)
	other := func(token fence.Token) fence.Grant { return fence.Grant{Lock: "b'ill", Token: token} }
	write := func(g fence.Grant) error {
		return fence.StatedTx(ctx, pool, g, func(tx pgx.Tx) error { return plainly(ctx, tx, g) })
	}
	err := write(other(9))
	wantErr(t, "another lock", err, fence.ErrOtherLock)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		t.Fatal(err)
	}
	_, cure, _ := strings.Cut(pg.Hint, ": ")
	d.Exec(t, cure)
	d.Exec(t, `UPDATE pglock.fences SET name = 'b''ill', slot = 0 WHERE relation = 0 AND resource = 'ledger'`) // as ErrOtherLock has it
	for how, write := range map[string]func(fence.Grant) error{
		"a protected table": write,
		"a resource":        func(g fence.Grant) error { return fence.Tx(ctx, pool, g, "ledger", nothing) },
	} {
		wantErr(t, how+", an early token of the new lock", write(other(5)), fence.ErrStale)
		wantErr(t, how+", the new lock", write(other(9)), nil)
		wantErr(t, how+", the former one", write(grant(7)), fence.ErrOtherLock)
	}
}
