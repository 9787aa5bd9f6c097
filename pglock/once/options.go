package once

import (
	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

// An Option changes one call of Run or Tx. A bad one is an error of the call, before any SQL.
type Option struct{ apply func(*config) }

type config struct {
	retry bool
	lease []pglock.Option
	held  []fence.Option
	inTx  bool // the success is recorded in the job's own transaction
}

// Retry lets an occurrence be run again that has failed, or whose runner vanished: at least once, instead of at most once, and never
// two attempts at a time, as far as leases go. Each call makes one attempt. One that finds another at work waits for it, until ctx
// ends, and takes over if that one fails, or when its lease is over; if it is done, the error is a [*DuplicateError].
//
// Let all who run the job say the same.
func Retry() Option { return Option{func(c *config) { c.retry = true }} }

// Lease passes options to the lease: pglock.TTL, which is how long after a crash another attempt can begin, or pglock.Metadata.
// pglock.HoldAtLeast and pglock.LockDelay keep the lock after a failure or a crash, and Retry waits for that: a call that is refused
// meanwhile has the error of the acquisition, a *pglock.HeldError that is Over, since nobody is at work. The
// lock is held alone: pglock.Shared and pglock.Permits are [ErrInvalid].
func Lease(opts ...pglock.Option) Option {
	return Option{func(c *config) { c.lease = append(c.lease, opts...) }}
}

// Held passes options to the transaction of [Runner.Tx]: fence.Limit, fence.Isolation, and fence.First, which [Runner.TxSQL]
// does not take.
func Held(opts ...fence.Option) Option {
	return Option{func(c *config) { c.held = append(c.held, opts...) }}
}
