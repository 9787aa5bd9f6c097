package pglock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

const (
	stressHosts          = 16 // each with a network of its own, so that one is cut off while another takes over
	stressClientsPerHost = 1
	stressGoroutines     = 2                      // of each client
	stressStall          = 500 * time.Millisecond // the longest
	stressExtra          = 90 * time.Second       // how much longer a slow machine may take to see enough
)

// stressNames are few, so that many want each.
var stressNames = []string{"one", "two", "three", "four"}

// A run in which little happened shows nothing.
var (
	stressLeast     = history.Stats{Grants: 500, Takeovers: 50, Told: 300, Renewals: 1, HandOvers: 1, WritesAccepted: 100}
	stressLeastCuts = 20 // and a stall and a kill at the least
)

// Many clients want few locks with short TTLs, write under them, and stall past them, while connections are cut and held up,
// replies lost, backends killed, and rows locked and deleted by hand. What the database logged, what the clients were told
// and for how long they trusted it, and which writes were accepted, must fit together in every way that package history
// knows. It runs for a few seconds; for longer, or with the choices of a run that failed:
//
//	PGLOCK_STRESS=60s PGLOCK_SEED=42 go test -race -run TestRandomFaults -v ./pglock
//
// The seed repeats the choices, not the order in which they meet.
func TestRandomFaultsBreakNoGuarantee(t *testing.T) {
	seed, length := stressSettings(t)
	t.Logf("PGLOCK_SEED=%d, %v", seed, length)
	s := newStress(t, seed, stressHosts, stressNames, (*stressWorker).turn)
	s.least = stressLeast
	s.remove = `DELETE FROM pglock.leases WHERE name = $1`

	s.run(t, length)
}

// Few processes ask for many names, so that most are granted and released several at a time, under the same faults.
func TestRandomFaultsBreakNoBatch(t *testing.T) {
	seed, length := stressSettings(t)
	t.Logf("PGLOCK_SEED=%d, %v", seed, length)
	s := newStress(t, seed, 3, strings.Split("abcdefghijklmnopqrstuvwxyz", ""), (*stressWorker).turn)
	s.least, s.leastBatches, s.goroutines = stressLeast, 50, 40
	s.remove = `DELETE FROM pglock.leases WHERE name = $1`

	s.run(t, length)
}

// run disturbs the clients for so long, and for as long as it takes that enough happens; then it judges.
func (s *stress) run(t *testing.T, length time.Duration) {
	t.Helper()
	stop := s.start(t)
	s.disturb(t, length)
	err := s.enough(t)
	for late := time.Now().Add(stressExtra); err != nil && time.Now().Before(late) && !t.Failed(); err = s.enough(t) {
		s.disturb(t, time.Second)
	}
	stop()

	s.check(t)
	if err != nil {
		t.Errorf("too little happened: %v", err)
	}
}

func stressSettings(t *testing.T) (seed uint64, length time.Duration) {
	t.Helper()
	seed, length = rand.Uint64(), 4*time.Second
	var err error
	if v := os.Getenv("PGLOCK_SEED"); v != "" {
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("PGLOCK_SEED: %v", err)
		}
	}
	if v := os.Getenv("PGLOCK_STRESS"); v != "" {
		if length, err = time.ParseDuration(v); err != nil {
			t.Fatalf("PGLOCK_STRESS: %v", err)
		}
	}
	return seed, length
}

// A stress is one run: the clients on their hosts, and who disturbs them.
type stress struct {
	names        []string // of the locks
	goroutines   int      // of each client
	turn         turn
	least        history.Stats
	leastBatches int
	remove       string // takes idle or all rows of a name away

	seed   uint64
	rand   *rand.Rand // of the test's goroutine, which disturbs
	db     *pgtest.Database
	admin  *pgx.Conn // straight to the database: connecting anew takes long while everybody does
	hosts  []*stressHost
	pauses *pauses

	granted chan struct{} // by the workers

	cuts, stalls, lostReplies, kills, rudeLocks, deletions int
}

// A turn is what a worker does again and again.
type turn func(w *stressWorker, ctx context.Context, owner string)

func newStress(t *testing.T, seed uint64, hosts int, names []string, f turn) *stress {
	t.Helper()
	s := &stress{names: names, goroutines: stressGoroutines, turn: f, seed: seed, rand: rand.New(rand.NewPCG(seed, 0)), db: pgtest.DB(t), pauses: watchPauses(t), granted: make(chan struct{}, 1000)}
	s.admin = s.db.Conn(t)
	s.exec(t, history.InstallLog("pglock"))
	s.exec(t, stressTables)
	for i := range hosts {
		s.hosts = append(s.hosts, newStressHost(t, s.db, i))
	}
	return s
}

// start lets all clients go. The function that it returns stops them, and returns when they have closed.
func (s *stress) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i, host := range s.hosts {
		for n := range stressClientsPerHost {
			source := rand.NewPCG(s.seed, uint64(1+i*stressClientsPerHost+n))
			w := &stressWorker{t: t, names: s.names, goroutines: s.goroutines, task: s.turn, host: host, name: fmt.Sprintf("%s/%d", host.name, n), rand: rand.New(source), granted: s.granted}
			wg.Go(func() { w.run(ctx) })
		}
	}
	stop = sync.OnceFunc(func() {
		cancel()
		for _, host := range s.hosts {
			host.proxy.Resume()
		}
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// await waits for so many grants. Damages that were paced by the clock would let nobody connect on a slow machine.
func (s *stress) await(grants int) {
	enough := time.After(time.Second)
	for range grants {
		select {
		case <-s.granted:
		case <-enough:
			return
		}
	}
}

// disturb does one damage after the other, for so long.
func (s *stress) disturb(t *testing.T, length time.Duration) {
	t.Helper()
	for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); {
		s.await(2 + s.rand.IntN(16))
		host := s.hosts[s.rand.IntN(len(s.hosts))]
		name := s.names[s.rand.IntN(len(s.names))]
		switch p := s.rand.IntN(100); {
		case p < 45:
			host.proxy.Cut()
			s.cuts++
		case p < 60:
			host.proxy.LoseNextReply(name) // an argument of every call that is about it
			s.lostReplies++
		case p < 75:
			host.proxy.Stall(pgtest.Direction(s.rand.IntN(3)))
			time.AfterFunc(between(s.rand, 50*time.Millisecond, stressStall), host.proxy.Resume)
			s.stalls++
		case p < 88:
			s.kills += s.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND pid % 3 = $2`,
				host.name, s.rand.IntN(3))
		case p < 97:
			strength := []string{"KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"}[s.rand.IntN(4)]
			s.exec(t, fmt.Sprintf(`BEGIN; SELECT FROM pglock.leases WHERE name = '%s' ORDER BY slot FOR %s; SELECT pg_sleep(%f); COMMIT`,
				name, strength, between(s.rand, 0, 100*time.Millisecond).Seconds()))
			s.rudeLocks++
		default:
			s.deletions += s.exec(t, s.remove, name)
		}
	}
}

// exec runs a statement, or several if there are no arguments, and answers how many rows it was about.
func (s *stress) exec(t *testing.T, sql string, args ...any) int {
	t.Helper()
	tag, err := s.admin.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	return int(tag.RowsAffected())
}

func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)))
}
