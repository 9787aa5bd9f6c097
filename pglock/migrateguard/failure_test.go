package migrateguard_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// A migration fails: who ran it hears why, all who come later hear the way out, the way out is one, and nobody waits for a lock.
func TestAFailedMigrationIsReportedByAll(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, runs)
	broken := []string{"1_a.up.sql", "INSERT INTO public.runs VALUES (1)", "7_broken.up.sql", "INSERT INTO public.runs VALUES (7);\nSELEKT 1", "9_c.up.sql", "SELECT 1"}
	g := open(t, d.URL, files(t, broken...), migrateguard.Config{})
	err := g.Up(soon(t))
	wantErr(t, "Up", err, migrateguard.ErrDirty, `migration 7_broken: `, "line 2", `at or near "SELEKT"`, "Force(7)", "Force(1)", `"public"."schema_migrations"`)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42601" {
		t.Errorf("the server's error is not in %v", err)
	}
	ctx := soon(t)
	for _, err := range together(3, func(int) error { return open(t, d.URL, files(t, broken...), migrateguard.Config{}).Up(ctx) }) {
		wantErr(t, "Up of another", err, migrateguard.ErrDirty, "version 7 of", "Force(7)", "Force(1)")
		if dirty, ok := errors.AsType[migrate.ErrDirty](err); !ok || dirty.Version != 7 {
			t.Errorf("golang-migrate's error is not in %v", err)
		}
	}
	wantVersion(t, d, "7 dirty")
	p, err := g.Plan(soon(t))
	if err != nil || !p.Dirty || p.Version != 7 || len(p.Migrations) != 0 {
		t.Errorf("Plan = %+v, %v", p, err)
	}

	must(t, "Force", g.Force(soon(t), 1)) // nothing of it is there
	broken[3] = "INSERT INTO public.runs VALUES (7)"
	must(t, "Up after it was repaired", open(t, d.URL, files(t, broken...), migrateguard.Config{}).Up(soon(t)))
	wantVersion(t, d, "9")
	if got := pgtest.Query[string](t, d, `SELECT string_agg(version::text, ' ' ORDER BY version) FROM runs`); got != "1 7" {
		t.Errorf("the migrations that ran are %s", got)
	}
	nothingLeft(t, d)
}

// The way down has a way out, too: golang-migrate keeps the row of a dirty nothing.
func TestAFailedWayDown(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	g := open(t, d.URL, files(t, "4_a.up.sql", "SELECT 1", "4_a.down.sql", "SELEKT 1"), migrateguard.Config{})
	must(t, "Up", g.Up(soon(t)))
	wantErr(t, "Down", g.Down(soon(t)), migrateguard.ErrDirty, "Force(-1)", "Force(4)")
	wantErr(t, "Up after it", g.Up(soon(t)), migrateguard.ErrDirty, "Force(-1)", "Force(4)")
	wantVersion(t, d, "-1 dirty")
}

// What a file must not do is an error, and not a version that is recorded.
func TestFilesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		cfg  migrateguard.Config
		want error
		says string
	}{
		"it leaves a transaction open":             {"BEGIN; CREATE TABLE x ()", migrateguard.Config{}, migrateguard.ErrDirty, "leaves a transaction open"},
		"it gives the session's lock up":           {"SELECT pg_advisory_unlock_all()", migrateguard.Config{}, migrateguard.ErrLost, "pg_advisory_unlock_all"},
		"it gives the session's lock up, no lease": {"SELECT pg_advisory_unlock_all()", migrateguard.Config{Session: true}, migrateguard.ErrLost, "pg_advisory_unlock_all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			err := open(t, d.URL, files(t, "1_a.up.sql", test.text, "2_b.up.sql", "SELECT 1"), test.cfg).Up(soon(t))
			wantErr(t, "Up", err, test.want, test.says)
			wantErr(t, "Up", err, migrateguard.ErrDirty)
			wantVersion(t, d, "1 dirty")
			if pgtest.Query[bool](t, d, `SELECT to_regclass('x') IS NOT NULL`) {
				t.Error("what was not committed is there")
			}
			nothingLeft(t, d)
		})
	}
}

// A file that fails in a transaction of its own leaves that behind. It is no loss of the lock.
func TestAFailureInAFilesOwnTransactionIsNoLoss(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	err := open(t, d.URL, files(t, "1_a.up.sql", "BEGIN; SELECT 1/0; COMMIT"), migrateguard.Config{Session: true}).Up(soon(t))
	wantErr(t, "Up", err, migrateguard.ErrDirty, "division by zero")
	if errors.Is(err, migrateguard.ErrLost) {
		t.Errorf("Up tells of a loss: %v", err)
	}
	nothingLeft(t, d)
}

// A COPY from what a program like psql would send is an error, and no wait for it that never ends. What a hook copies is its own.
func TestACopyFromStdinIsRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, runs)
	pool := poolAs(t, d.URL, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.CopyFrom(ctx, pgx.Identifier{"public", "runs"}, []string{"version"}, pgx.CopyFromRows([][]any{{int32(0)}}))
			return err
		}
	})
	g, err := migrateguard.New(pool, files(t, "1_a.up.sql", "CREATE TABLE a (n int); COPY a FROM STDIN; COPY a FROM STDIN; SELECT 1"), migrateguard.Config{Session: true})
	must(t, "New", err)
	wantErr(t, "Up", g.Up(soon(t)), migrateguard.ErrDirty, "COPY from stdin failed: a migration has no standard input: use INSERT")
	wantVersion(t, d, "1 dirty")
	nothingLeft(t, d)
}

// Golang-migrate, and what the database keeps, have no room for such a version: it would be taken for nothing, and begun with for ever.
func TestAVersionThatIsTooGreatIsRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	g := open(t, d.URL, files(t, "1_a.up.sql", "SELECT 1", "18446744073709551615_b.up.sql", "SELECT 2"), migrateguard.Config{})
	wantErr(t, "Up", g.Up(soon(t)), migrateguard.ErrInvalid, "18446744073709551615", "9223372036854775807")
}

// Editors put a byte order mark before a text, which is no SQL.
func TestAByteOrderMarkIsNoSQL(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, runs)
	must(t, "Up", open(t, d.URL, files(t, "1_a.up.sql", "\ufeffINSERT INTO public.runs VALUES (1);\r\n", "2_b.up.sql", "\ufeff"), migrateguard.Config{}).Up(soon(t)))
	wantVersion(t, d, "2")
	if got := ran(t, d); got != "1" {
		t.Errorf("the migrations that ran are %s", got)
	}
}

// A hook that leaves a transaction open is refused: what is read under the lock would be as old as its snapshot.
func TestAHookThatLeavesATransactionOpenIsToldSo(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool := poolAs(t, d.URL, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ")
			return err
		}
	})
	g, err := migrateguard.New(pool, files(t, "1_a.up.sql", "SELECT 1"), migrateguard.Config{})
	must(t, "New", err)
	if err := g.Up(soon(t)); err == nil || !strings.Contains(err.Error(), "leaves a transaction open") {
		t.Errorf("Up = %v, want what the hook has done", err)
	}
	nothingLeft(t, d)
}

// A source whose files are named otherwise has no migrations, and nobody is to take the database for migrated.
func TestASourceWithoutMigrationsIsTold(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	g := open(t, d.URL, files(t, "001.sql", "SELECT 1"), migrateguard.Config{})
	wantErr(t, "Up", g.Up(soon(t)), migrateguard.ErrInvalid, "no migrations", "1_name.up.sql")
	_, err := g.Plan(soon(t))
	wantErr(t, "Plan", err, os.ErrNotExist)
	must(t, "Down", g.Down(soon(t)))
}

// A torn source breaks off in the middle of a file.
type torn struct{ source.Driver }

var errTorn = errors.New("connection reset")

func (s torn) ReadUp(version uint) (io.ReadCloser, string, error) {
	r, name, err := s.Driver.ReadUp(version)
	if err != nil {
		return nil, "", err
	}
	b := make([]byte, 8)
	_, err = io.ReadFull(r, b)
	return io.NopCloser(io.MultiReader(strings.NewReader(string(b)), tear{})), name, err
}

type tear struct{}

func (tear) Read([]byte) (int, error) { return 0, errTorn }

func TestAFileThatCannotBeReadIsNotRun(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	err := open(t, d.URL, torn{files(t, "1_a.up.sql", "SELECT 1 FROM missing")}, migrateguard.Config{}).Up(soon(t))
	wantErr(t, "Up", err, errTorn)
	if errors.Is(err, migrateguard.ErrDirty) || pgtest.Query[bool](t, d, `SELECT to_regclass('schema_migrations') IS NOT NULL`) {
		t.Errorf("something was run or recorded: %v", err)
	}
	nothingLeft(t, d)
}

func TestAVersionThatTheSourceDoesNotHave(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, runs)
	must(t, "Up", open(t, d.URL, three(t), migrateguard.Config{}).Up(soon(t)))
	old := open(t, d.URL, files(t, "1_books.up.sql", "SELECT 1"), migrateguard.Config{})
	wantErr(t, "Up of an older program", old.Up(soon(t)), migrateguard.ErrUnknownVersion, "version 3 (it ends at 1)", "use the program")
	_, err := old.Plan(soon(t))
	wantErr(t, "Plan of an older program", err, migrateguard.ErrUnknownVersion)
	wantErr(t, "Up of an older program", err, os.ErrNotExist)
	d.Exec(t, `UPDATE schema_migrations SET dirty = true`)
	err = old.Up(soon(t))
	wantErr(t, "Up of an older program", err, migrateguard.ErrDirty, "version 3 (it ends at 1)", "use the program")
	wantErr(t, "Up of an older program", err, migrateguard.ErrUnknownVersion)
	if strings.Contains(err.Error(), "Force") || strings.Contains(err.Error(), "-1") {
		t.Errorf("it advises what only the newer program can know: %v", err)
	}
	d.Exec(t, `UPDATE schema_migrations SET dirty = false`)
	g := open(t, d.URL, three(t), migrateguard.Config{})
	wantErr(t, "Migrate(4)", g.Migrate(soon(t), 4), migrateguard.ErrUnknownVersion, "version 4")
	wantErr(t, "Migrate(0)", g.Migrate(soon(t), 0), migrateguard.ErrUnknownVersion, "version 0")
	wantErr(t, "Steps(1)", g.Steps(soon(t), 1), migrate.ErrShortLimit{Short: 1})
	wantErr(t, "Steps(-5)", g.Steps(soon(t), -5), migrate.ErrShortLimit{Short: 2})
	wantVersion(t, d, "3")
	nothingLeft(t, d)
}

func TestWithoutTheRightToInstallTheSessionLockIsOffered(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	role := d.Role(t)
	d.Exec(t, `CREATE SCHEMA app AUTHORIZATION `+role)
	cfg := migrateguard.Config{Schema: "app"}
	src := files(t, "1_a.up.sql", "CREATE TABLE app.a ()")
	wantErr(t, "Up", open(t, d.URLAs(role), src, cfg).Up(soon(t)), migrations.ErrPrivilege, "Config.Session", role, "CREATE SCHEMA")
	cfg.Session = true
	must(t, "Up with a session lock", open(t, d.URLAs(role), src, cfg).Up(soon(t)))

	// Once somebody has installed it, and made the role a locker, the lease is to be had.
	must(t, "migrations.Up", migrations.Up(soon(t), d.Pool(t)))
	d.Exec(t, `SELECT pglock.grant_locker('"`+role+`"')`)
	must(t, "Down with a lease", open(t, d.URLAs(role), src, migrateguard.Config{Schema: "app"}).Down(soon(t)))
	nothingLeft(t, d)
}

// What PostgreSQL says of a missing right names neither the role nor what to grant it.
func TestAMissingRightOnTheVersionTableIsNamedWithItsGrant(t *testing.T) {
	t.Parallel()
	for _, session := range []bool{false, true} {
		d := pgtest.Empty(t)
		must(t, "migrations.Up", migrations.Up(soon(t), d.Pool(t)))
		role := d.Role(t)
		d.Exec(t, `CREATE SCHEMA app; SELECT pglock.grant_locker('"`+role+`"')`)
		guard := func(url string, files source.Driver) *migrateguard.Guard {
			return open(t, url, files, migrateguard.Config{Schema: "app", Session: session})
		}
		first := []string{"1_a.up.sql", "SELECT 1"}
		both := append([]string{"2_b.up.sql", "SELECT 1"}, first...)
		mine := guard(d.URLAs(role), files(t, both...))
		refused := func(what string, err error, grant string) { // and what it says to do is done
			t.Helper()
			wantErr(t, what, err, migrations.ErrPrivilege, role, grant)
			_, sql, _ := strings.Cut(err.Error(), "As its owner: ")
			sql, _, _ = strings.Cut(sql, " (ERROR")
			d.Exec(t, sql)
		}
		refused("Up without a version table", mine.Up(soon(t)), `GRANT USAGE, CREATE ON SCHEMA "app"`)
		d.Exec(t, `REVOKE ALL ON SCHEMA app FROM "`+role+`"`)
		must(t, "Up as the owner", guard(d.URL, files(t, first...)).Up(soon(t)))
		_, err := mine.Plan(soon(t))
		refused("Plan", err, `GRANT SELECT ON "app"."schema_migrations"`)
		p, err := mine.Plan(soon(t))
		must(t, "Plan with the right to read", err)
		if len(p.Migrations) != 1 || p.Version != 1 {
			t.Errorf("Plan = %+v", p)
		}
		refused("Up without the right to write", mine.Up(soon(t)), `GRANT SELECT, INSERT, DELETE ON "app"."schema_migrations"`)
		must(t, "Up with all rights", mine.Up(soon(t)))
	}
}

func TestAStandbyIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	primary, standby := pgtest.Standby(t)
	err := open(t, standby.URL, files(t, "1_a.up.sql", "SELECT 1"), migrateguard.Config{}).Up(soon(t))
	wantErr(t, "Up", err, pglock.ErrReadOnly, "primary")
	must(t, "Up on the primary", open(t, primary.URL, files(t, "1_a.up.sql", "SELECT 1"), migrateguard.Config{}).Up(soon(t)))
	standby.WaitReplayed(t, primary)
	must(t, "Up where nothing is pending", open(t, standby.URL, files(t, "1_a.up.sql", "SELECT 1"), migrateguard.Config{}).Up(soon(t)))
}

func TestBadInputIsRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://nobody@127.0.0.1:1/none"
	src := files(t, "1_a.up.sql", "SELECT 1")
	for what, make := range map[string]func() error{
		"no pool":   func() error { _, err := migrateguard.New(nil, src, migrateguard.Config{}); return err },
		"no source": func() error { _, err := migrateguard.Open(nowhere, nil, migrateguard.Config{}); return err },
		"no URL":    func() error { _, err := migrateguard.Open("postgres://%", src, migrateguard.Config{}); return err },
		"a NUL": func() error {
			_, err := migrateguard.Open(nowhere, src, migrateguard.Config{Table: "a\x00"})
			return err
		},
		"no UTF-8": func() error {
			_, err := migrateguard.Open(nowhere, src, migrateguard.Config{Schema: "\xff"})
			return err
		},
		"a long name": func() error {
			_, err := migrateguard.Open(nowhere, src, migrateguard.Config{Table: strings.Repeat("a", 64)})
			return err
		},
		"a negative wait": func() error { _, err := migrateguard.Open(nowhere, src, migrateguard.Config{Wait: -1}); return err },
		"a TTL of 1 ms": func() error {
			_, err := migrateguard.Open(nowhere, src, migrateguard.Config{Lease: pglock.Config{TTL: 1e6}})
			return err
		},
	} {
		wantErr(t, what, make(), migrateguard.ErrInvalid)
	}
	g := open(t, nowhere, src, migrateguard.Config{})
	wantErr(t, "Steps(0)", g.Steps(soon(t), 0), migrateguard.ErrInvalid)
	wantErr(t, "Force(-2)", g.Force(soon(t), -2), migrateguard.ErrInvalid)
	wantErr(t, "Migrate(max)", g.Migrate(soon(t), ^uint(0)), migrateguard.ErrInvalid)

	d := pgtest.Empty(t)
	wantErr(t, "a schema that is not there", open(t, d.URL, src, migrateguard.Config{Schema: "none"}).Up(soon(t)), migrateguard.ErrInvalid, `"none"`)
	d.Exec(t, `CREATE TABLE rails (version text PRIMARY KEY)`)
	wantErr(t, "somebody else's table", open(t, d.URL, src, migrateguard.Config{Table: "rails"}).Up(soon(t)), migrateguard.ErrInvalid, `"public"."rails"`, "Config.Table")
	d.Exec(t, `ALTER ROLE `+d.Role(t)+` SET search_path = ''`)
	own := open(t, d.URL, src, migrateguard.Config{Lease: pglock.Config{Schema: "public"}})
	must(t, "Up", own.Up(soon(t)))
	wantErr(t, "Drop of the lease's schema", own.Drop(soon(t)), migrateguard.ErrInvalid, "public")
}

func TestAnEndedContextDoesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	why := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	err := open(t, d.URL, files(t, "1_a.up.sql", "SELECT 1"), migrateguard.Config{}).Up(ctx)
	wantErr(t, "Up", err, context.Canceled)
	wantErr(t, "Up", err, why)
}
