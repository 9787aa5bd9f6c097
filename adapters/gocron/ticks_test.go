package gocronlock_test

import (
	"testing"

	"github.com/fencedlock/fencedlock/internal/ticktest"
)

func TestEachTickRunsOnceOnReplicasWhoseClocksDiffer(t *testing.T) {
	t.Parallel()
	ticktest.EachTickRunsOnce(t)
}

func TestAKilledRunnerIsFollowed(t *testing.T) {
	t.Parallel()
	ticktest.AKilledRunnerIsFollowed(t)
}
