package pglock_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
)

// oneLock checks that a name is one lock for both clients, and that a third reads it as it is.
func oneLock(t *testing.T, a, b, c *pglock.Client, name string) {
	t.Helper()
	l := take(t, a, name)
	refused(t, b, name)
	if s, err := c.Inspect(soon(t), name); err != nil || !s.Held || s.Token != l.Token() {
		t.Errorf("Inspect(%q) = %+v, %v, want that it is held with token %d", name, s, err, l.Token())
	}
	release(t, l)
}

// The client_encoding that a pool, a role or a database has makes no other lock of a name.
func TestANameIsOneLockWhateverTheEncodingOfTheClient(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	role := d.Role(t)
	d.Exec(t, `SELECT pglock.grant_locker('`+role+`'), pglock.grant_auditor('`+role+`')`)
	d.Exec(t, `ALTER ROLE `+role+` SET client_encoding = 'SJIS'`)
	pooled := pgtest.PgBouncer(t, d)
	plain := client(t, d)
	hooked := func(url string) *pglock.Client {
		pc, err := pgxpool.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `SET client_encoding = LATIN1`)
			return err
		}
		return ofPool(t, pc, pglock.Config{})
	}
	for what, c := range map[string]*pglock.Client{
		"of the pool":                    open(t, with(t, d.URL, "client_encoding", "LATIN1"), pglock.Config{}),
		"of the role":                    open(t, d.URLAs(role), pglock.Config{}),
		"behind a pooler":                open(t, with(t, pooled, "client_encoding", "LATIN1"), pglock.Config{}),
		"of a hook of the pool":          hooked(d.URL),
		"of a hook, and behind a pooler": hooked(pooled),
	} {
		t.Run(what, func(t *testing.T) {
			oneLock(t, c, plain, plain, "straße/é/用户")
			oneLock(t, plain, c, c, "straße/é/用户")
		})
	}
}

// In a database whose encoding lacks a character, a name that has it is refused, and all others are one lock for every client.
func TestADatabaseOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	name := d.Name + "_latin1"
	d.Exec(t, `CREATE DATABASE `+name+` ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	t.Cleanup(func() { d.Exec(t, `DROP DATABASE `+name+` WITH (FORCE)`) })
	url := d.Server.URL(name)
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	wantErr(t, "Up", migrations.Up(soon(t), pool), nil)
	a, b := open(t, url, pglock.Config{}), open(t, with(t, url, "client_encoding", "UTF8"), pglock.Config{})
	oneLock(t, a, b, b, "straße")
	_, err = a.TryAcquire(soon(t), "用户")
	wantErr(t, "TryAcquire of a name that the database cannot store", err, pglock.ErrInvalidOption)
}
