package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// table returns a database with an empty table of numbers, a proxy before it, and a connection through the proxy.
func table(t *testing.T) (*pgtest.Database, *pgtest.Proxy, *pgx.Conn) {
	t.Helper()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE numbers (n int)`)
	p := pgtest.NewProxy(t, d)
	return d, p, through(t, p)
}

func through(t *testing.T, p *pgtest.Proxy) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// insert executes one request that has the number's text in it: one round trip, nothing prepared.
func insert(ctx context.Context, conn *pgx.Conn, n string) error {
	_, err := conn.Exec(ctx, `INSERT INTO numbers VALUES ($1::text::int)`, pgx.QueryExecModeExec, n)
	return err
}

func count(t *testing.T, d *pgtest.Database) int {
	t.Helper()
	return pgtest.Query[int](t, d, `SELECT count(*) FROM numbers`)
}

func happened(t *testing.T, event <-chan struct{}) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(10 * time.Second):
		t.Fatal("the trap was not sprung within 10 s")
	}
}

func TestLostReplyIsOfACommittedRequest(t *testing.T) {
	t.Parallel()
	d, p, conn := table(t)
	lost := p.LoseNextReply("4711")
	if err := insert(t.Context(), conn, "1"); err != nil {
		t.Fatalf("a request without the text: %v", err)
	}
	if err := insert(t.Context(), conn, "4711"); err == nil {
		t.Error("a lost reply is no error")
	}
	happened(t, lost)
	if n := count(t, d); n != 2 {
		t.Errorf("%d rows, want 2: the reply was lost, not the request", n)
	}
	if err := insert(t.Context(), through(t, p), "4711"); err != nil {
		t.Errorf("the next time: %v, want it once only", err)
	}
}

func TestLostRequestNeverReachesTheServer(t *testing.T) {
	t.Parallel()
	d, p, conn := table(t)
	lost := p.LoseNextRequest("4711")
	before := p.Counts()
	if err := insert(t.Context(), conn, "4711"); err == nil {
		t.Error("a lost request is no error")
	}
	happened(t, lost)
	if n := count(t, d); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
	passed := p.Counts().Since(before).ToServer
	delete(passed, 0) // pgx asks the server, over another connection, to cancel what it was doing
	if len(passed) > 0 {
		t.Errorf("passed on to the server: %v", passed)
	}
}

func TestLostReplyOfAPipeline(t *testing.T) {
	t.Parallel()
	d, p, conn := table(t)
	p.LoseNextReply("third")
	pipe := conn.PgConn().StartPipeline(t.Context())
	for _, sql := range []string{`SELECT 1 /* first */`, `SELECT 2 /* second */`, `INSERT INTO numbers VALUES (3) /* third */`} {
		pipe.SendQueryParams(sql, nil, nil, nil, nil)
		if err := pipe.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	answers := 0
	for ; answers < 10; answers++ { // a result and a sync for each
		if _, err := pipe.GetResults(); err != nil {
			break
		}
	}
	_ = pipe.Close()
	if n := count(t, d); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	if answers > 4 {
		t.Errorf("%d answers, want those of the first two requests at most", answers)
	}
}

func TestCutAndRefuse(t *testing.T) {
	t.Parallel()
	d, p, conn := table(t)
	p.Refuse(true)
	if err := conn.Ping(t.Context()); err != nil {
		t.Errorf("an open connection after Refuse: %v", err)
	}
	p.Cut()
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection that was cut still works")
	}
	if _, err := pgx.Connect(t.Context(), p.URL()); err == nil {
		t.Error("a new connection was not refused")
	}
	p.Refuse(false)
	if err := through(t, p).Ping(t.Context()); err != nil {
		t.Error(err)
	}
	d.WaitFor(t, `SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database()`) // ours and the helper's: the cut one is gone
	if n := p.Conns(); n != 1 {
		t.Errorf("%d connections open, want 1", n)
	}
}

func TestStallHoldsBackEachDirection(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		dir  pgtest.Direction
		rows int // that the server has while the client waits
	}{
		"to the server": {pgtest.ToServer, 0},
		"to the client": {pgtest.ToClient, 1},
		"both":          {pgtest.Both, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d, p, conn := table(t)
			p.Stall(test.dir)
			p.Stall(test.dir) // twice is once
			answer := make(chan error, 1)
			go func() { answer <- insert(t.Context(), conn, "1") }()
			if test.rows > 0 {
				d.WaitFor(t, `SELECT count(*) = $1 FROM numbers`, test.rows)
			}
			select {
			case err := <-answer:
				t.Fatalf("answered through a stalled proxy: %v", err)
			case <-time.After(50 * time.Millisecond): // nothing happens: no event to wait for
			}
			if n := count(t, d); n != test.rows {
				t.Errorf("%d rows while stalled, want %d", n, test.rows)
			}
			p.Resume()
			if err := <-answer; err != nil {
				t.Errorf("after Resume: %v", err)
			}
		})
	}
}

func TestCutWhileStalled(t *testing.T) {
	t.Parallel()
	_, p, conn := table(t)
	p.Stall(pgtest.Both)
	answer := make(chan error, 1)
	go func() { answer <- conn.Ping(t.Context()) }()
	p.Cut()
	if err := <-answer; err == nil {
		t.Error("a cut connection answered")
	}
}

func TestDelayIsOfTheWayNotOfTheFrame(t *testing.T) {
	t.Parallel()
	_, p, conn := table(t)
	const d = 100 * time.Millisecond
	p.Delay(pgtest.Both, d)
	start := time.Now()
	rows, err := conn.Query(t.Context(), `SELECT repeat('x', 1000) FROM generate_series(1, 200)`, pgx.QueryExecModeExec)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for rows.Next() {
		n++
	}
	if rows.Err() != nil || n != 200 {
		t.Errorf("%d rows, %v", n, rows.Err())
	}
	if took := time.Since(start); took < 2*d || took > 10*d {
		t.Errorf("one round trip took %v, want about %v", took, 2*d)
	}
}

func TestCountsRoundTrips(t *testing.T) {
	t.Parallel()
	_, p, conn := table(t)
	before := p.Counts()
	if err := insert(t.Context(), conn, "1"); err != nil { // extended protocol, one Sync
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT 1; SELECT 2`); err != nil { // simple protocol, one Query
		t.Fatal(err)
	}
	got := p.Counts().Since(before)
	if got.RoundTrips() != 2 || got.ToServer['S'] != 1 || got.ToServer['Q'] != 1 || got.ToClient['Z'] != 2 {
		t.Errorf("%d round trips, to the server %v, to the client %v; want 2, one S and one Q, two Z", got.RoundTrips(), got.ToServer, got.ToClient)
	}
}

func TestServersLastWordsPass(t *testing.T) {
	t.Parallel()
	d, _, conn := table(t)
	if n := d.KillBackends(t, "true"); n != 1 {
		t.Errorf("killed %d, want 1", n)
	}
	err := conn.Ping(t.Context())
	if code := sqlState(err); code != "57P01" {
		t.Errorf("after the kill: %v, want 57P01", err)
	}
}
