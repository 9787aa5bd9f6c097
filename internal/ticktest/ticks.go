package ticktest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

const (
	// apart is between the clocks that are furthest apart.
	apart = 600 * time.Millisecond

	// tolerance is how late an answer may be. The lock keeps a name for half of Every: it tells apart what is less than that apart.
	tolerance = Every/2 - apart

	// patience bounds every wait, and ends only tests that fail anyway.
	patience = 90 * time.Second
)

// ahead are the clocks of the replicas.
var ahead = map[string]time.Duration{
	"A": -apart / 2, "B": -apart / 6, "C": apart / 6, "D": apart / 2,
}

// A process is a replica, seen from the test.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	said  chan struct{} // closed when it says no more
}

// A word is what a process has said.
type word struct {
	from *process
	text string
}

// start starts replicas. What they say comes through the channel, and is never more than it holds.
func start(t *testing.T, d *pgtest.Database, env ...string) (map[string]*process, <-chan word) {
	t.Helper()
	d.Exec(t, schema)
	processes, words := map[string]*process{}, make(chan word, 10_000)
	for name, by := range ahead {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), nameVariable+"="+name, urlVariable+"="+d.URL, aheadVariable+"="+by.String())
		cmd.Env = append(cmd.Env, env...)
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := &process{name: name, cmd: cmd, stdin: stdin, said: make(chan struct{})}
		processes[name] = p
		t.Cleanup(p.kill)
		go func() { // ends with the process, which kill joins
			defer close(p.said)
			for out := bufio.NewScanner(stdout); out.Scan(); {
				words <- word{p, out.Text()}
			}
		}()
	}
	for range processes {
		if w := hear(t, words); w.text != "ready" { // no tick comes before all have had a chance to start: it would be judged
			t.Logf("replica %s says %q before all are ready", w.from.name, w.text)
		}
	}
	return processes, words
}

// hear waits for the next word.
func hear(t *testing.T, words <-chan word) word {
	t.Helper()
	select {
	case w := <-words:
		return w
	case <-time.After(patience):
		t.Fatalf("no replica has said anything for %v", patience)
		panic("unreachable")
	}
}

// runner waits for a run of the job.
func runner(t *testing.T, words <-chan word) *process {
	t.Helper()
	for {
		if w := hear(t, words); w.text == "ran" {
			return w.from
		}
	}
}

// kill is kill -9, if it still runs.
func (p *process) kill() {
	p.cmd.Process.Kill() //nolint:errcheck // it may have ended
	<-p.said
	p.cmd.Wait() //nolint:errcheck // killed, as asked
}

// finish lets it end by itself.
func (p *process) finish(t *testing.T) {
	t.Helper()
	p.stdin.Close() //nolint:errcheck // that is what it waits for
	<-p.said
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("replica %s: %v", p.name, err)
	}
}

// EachTickRunsOnce lets four replicas run a job, kills one that has just run it, goes on with three, and so on until one is
// left: some seconds, or five minutes where PGLOCK_LONG=1 asks for it. Each tick must have run once.
func EachTickRunsOnce(t *testing.T) {
	t.Helper()
	d := pgtest.DB(t)
	alive, words := start(t, d)
	first, _ := tickAt(time.Now().Add(apart)) // of which the slowest clock is not there yet
	first++
	for len(alive) > 0 {
		var last *process
		for range pgtest.Rounds(2, 25) {
			last = runner(t, words)
		}
		if len(alive) == 1 {
			break
		}
		d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pglock.inspect WHERE held)`) // it is idle
		last.kill()
		delete(alive, last.name)
		t.Logf("replica %s is killed, %d are left", last.name, len(alive))
		if pgtest.Query[bool](t, d, `SELECT EXISTS (SELECT FROM pglock.inspect WHERE held AND owner = $1)`, last.name) {
			// It stood still for so long that it has begun the next run. That is AKilledRunnerIsFollowed, and proves nothing here.
			tick, _ := tickAt(time.Now())
			d.Exec(t, `INSERT INTO asks (tick, replica, late, token, refused) VALUES ($1, $2, '0', 0, 'killed')`, tick, last.name)
			d.Age(t, Job, time.Minute)
		}
	}
	for _, p := range alive {
		p.finish(t)
	}
	asks := read(t, d)
	v := judge(asks, first, asks[len(asks)-1].Tick, tolerance)
	for _, what := range v.wrong {
		t.Error(what)
	}
	if v.judged*2 < v.ticks {
		t.Errorf("this machine is too busy: only %d of %d ticks say anything", v.judged, v.ticks)
	}
	t.Logf("%d ticks, %d of them judged", v.ticks, v.judged)
	if t.Failed() {
		for _, a := range asks {
			t.Log(a)
		}
	}
}

// AKilledRunnerIsFollowed kills a replica while it runs the job. Another must run it within a minute, and not before the lease is over.
func AKilledRunnerIsFollowed(t *testing.T) {
	t.Helper()
	d := pgtest.DB(t)
	_, words := start(t, d, hangVariable+"=1")
	first := runner(t, words)
	until := pgtest.Query[time.Time](t, d, `SELECT expires_at FROM pglock.leases WHERE name = $1`, Job)
	first.kill()
	killed := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)

	second := runner(t, words)

	granted := pgtest.Query[time.Time](t, d, `SELECT granted_at FROM pglock.leases WHERE name = $1`, Job)
	if second == first || granted.Before(until) || granted.Sub(killed) > time.Minute {
		t.Errorf("replica %s runs %v after the death of %s, whose lease had %v left", second.name, granted.Sub(killed), first.name, until.Sub(killed))
	}
	t.Logf("followed after %v", granted.Sub(killed))
}
