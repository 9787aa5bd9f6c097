package pglock

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// BenchmarkRenewalTick is one renewal of every lease that a client holds: one statement.
func BenchmarkRenewalTick(b *testing.B) {
	for _, leases := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("leases=%d", leases), func(b *testing.B) {
			c, err := Open(pgtest.DB(b).URL, Config{TTL: 30 * time.Second})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close(b.Context()) //nolint:errcheck // the database goes with it
			var wg sync.WaitGroup
			for i := range leases {
				wg.Go(func() {
					if _, err := c.TryAcquire(b.Context(), fmt.Sprint("lock ", i), NoRenewal()); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			held := c.keeper.all() // which the keeper leaves alone, so that its connection is ours
			for b.Loop() {
				c.keeper.renew(b.Context(), held)
			}
			for _, l := range held {
				if !l.Valid() {
					b.Fatalf("%v: %v", l, l.Err())
				}
			}
		})
	}
}
