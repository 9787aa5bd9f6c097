package pglock

import (
	"encoding/json"
	"fmt"
	"time"
)

// maxMetadata bounds what Metadata stores beside a lease, in bytes of JSON: it is rewritten with each grant.
const maxMetadata = 16 << 10

// An Option changes one acquisition. A bad one is an error of the acquiring call, before any SQL.
type Option struct {
	apply func(*leaseConfig) error
}

// TTL replaces Config.TTL for this lease.
func TTL(d time.Duration) Option {
	return Option{func(c *leaseConfig) error { c.ttl = d; return nil }}
}

// HoldAtLeast keeps the name from everybody else for d after the grant, even when the lease is released or lost before. It is
// for short jobs on schedulers whose clocks differ, which ask with TryAcquire: whoever comes late is refused with a HeldError
// and skips the run. (Acquire and Do wait, and so would run the job once more when the time is over.) d is at most 366 days and
// is not bounded by the cap on TTLs. Of a Shared lease only writers are kept away, and of one with Permits only its permit is. A grant that the caller was never told of keeps nobody away.
// Package once keeps a record as well.
func HoldAtLeast(d time.Duration) Option {
	return Option{func(c *leaseConfig) error {
		if d <= 0 || d > maxHold {
			return fmt.Errorf("%w: HoldAtLeast(%v) must be positive and at most %v", ErrInvalidOption, d, maxHold)
		}
		c.holdAtLeast = d
		return nil
	}}
}

// NoRenewal leaves the renewals to the caller: the lease lapses at the end of its TTL unless Lease.Renew is called in time.
func NoRenewal() Option {
	return Option{func(c *leaseConfig) error { c.manual = true; return nil }}
}

// Fair lets those who wait for a name be served in the order in which they came, over all processes: the first of each process
// has its place in a line that the database keeps. It counts among those who ask for it; whoever does not, looks at no line. It
// costs another round trip for each grant, and the hand-over within the process. A process that dies while it is first in
// the line keeps the others waiting for at most 6 s: it has 3 s to come for the lock, and the others ask by themselves within 3 s. One that
// lives and does not come to ask within 3 s, because it is paused, say, loses its place. Fair is for Acquire and Do: TryAcquire,
// which waits for nobody, refuses it.
func Fair() Option {
	return Option{func(c *leaseConfig) error { c.fair = true; return nil }}
}

// Metadata stores v, as JSON, beside the lease, for people who inspect it. At most 16 KiB; the character U+0000 and unpaired
// surrogates, which PostgreSQL's jsonb refuses, are an error.
func Metadata(v any) Option {
	return Option{func(c *leaseConfig) error {
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("%w: Metadata: %w", ErrInvalidOption, err)
		}
		if len(b) > maxMetadata {
			return fmt.Errorf("%w: Metadata of %d bytes, at most %d are allowed", ErrInvalidOption, len(b), maxMetadata)
		}
		if err := storable(b); err != nil {
			return fmt.Errorf("%w: Metadata: %w", ErrInvalidOption, err)
		}
		s := string(b)
		c.metadata = &s
		return nil
	}}
}

// A leaseConfig is one acquisition as the caller wants it.
type leaseConfig struct {
	name        string // for messages: all the names
	names       []string
	kind        kind
	ttl         time.Duration
	renewEvery  time.Duration
	holdAtLeast time.Duration
	lockDelay   time.Duration
	maxHold     time.Duration
	manual      bool
	fair        bool
	metadata    *string
}

// isPlain says whether a release by another process may grant it. That lasts for three seconds, until it is renewed, and is gone then if
// nobody comes for it. A short TTL would be over by then, or too much of it.
func (lc leaseConfig) isPlain() bool {
	return lc.kind == alone && len(lc.names) == 1 && lc.ttl >= 500*time.Millisecond && lc.holdAtLeast == 0 && lc.lockDelay == 0 && lc.maxHold == 0 && !lc.manual && lc.metadata == nil
}

func (c *Client) leaseConfig(names []string, opts []Option) (lc leaseConfig, err error) {
	lc = leaseConfig{names: names, ttl: c.cfg.TTL}
	if lc.name, err = checkNames(names); err != nil {
		return lc, err
	}
	name := lc.name
	for _, o := range opts {
		if o.apply == nil {
			return lc, fmt.Errorf("%w: a zero Option (lock %q)", ErrInvalidOption, name)
		}
		if err := o.apply(&lc); err != nil {
			return lc, fmt.Errorf("%w (lock %q)", err, name)
		}
	}
	renewEvery := c.cfg.RenewEvery
	if lc.manual {
		renewEvery = 0
	}
	if err := checkTimes(lc.ttl, renewEvery); err != nil {
		return lc, fmt.Errorf("%w (lock %q)", err, name)
	}
	lc.renewEvery = renewal(lc.ttl, renewEvery)
	switch {
	case lc.maxHold > 0 && lc.maxHold < lc.ttl:
		return lc, fmt.Errorf("%w: MaxHold(%v) is less than the TTL, %v (lock %q)", ErrInvalidOption, lc.maxHold, lc.ttl, name)
	case lc.fair && len(names) > 1:
		return lc, fmt.Errorf("%w: Fair is for one name, not for %q", ErrInvalidOption, name)
	}
	return lc, nil
}

func (c *Client) ttlTooLong(lc leaseConfig, longest time.Duration) error {
	err := fmt.Errorf("%w: lock %q: TTL %v is above the cap of this installation, %v. A shorter one will do: renewals extend it", ErrInvalidOption, lc.name, lc.ttl, longest)
	if lc.ttl > maxCap {
		return fmt.Errorf("%w. No cap is above %v", err, maxCap)
	}
	return fmt.Errorf("%w. Otherwise, as the owner of the schema: Client.RaiseCap(%v), or %s, and wait until every standby has replayed it; "+
		"new grants then wait that long after each restart or failover", err, lc.ttl, c.in(fmt.Sprintf("SELECT pglock.raise_cap(%d)", lc.ttl.Microseconds())))
}
