package history

import (
	"fmt"
	"time"
)

// An Instant is a moment by the database's clock, in microseconds since 1970: the resolution of timestamptz. Zero is
// PostgreSQL's 'epoch', which as an expiry means "released".
type Instant int64

// InstantOf converts t, dropping what is finer than a microsecond.
func InstantOf(t time.Time) Instant { return Instant(t.UnixMicro()) }

// Time converts back, in UTC.
func (i Instant) Time() time.Time { return time.UnixMicro(int64(i)).UTC() }

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d.Microseconds()) }

// String formats the time of day, which is what tells the instants of one run apart.
func (i Instant) String() string {
	if i == 0 {
		return "epoch"
	}
	return i.Time().Format("15:04:05.000000")
}

// A Change is the state of a lease row after one change of it, or before its removal, as the database logged it.
//
// What happened is told by the difference from the row's change before: another token is a grant, the same grant
// with a later expiry is a renewal, with the expiry 'epoch' a release. Another acquisition with the same token takes the
// grant from its holder (a revocation), and a token whose expiry is past was drawn with nobody to hold it.
type Change struct {
	// Serial is the database's order. It is drawn under the row's lock, so for one row it is the order of commits.
	Serial      int64   `json:"serial"`
	Removed     bool    `json:"removed,omitempty"`
	Lock        string  `json:"lock"`
	Slot        int     `json:"slot,omitempty"`
	Token       int64   `json:"token,omitempty"`
	Acquisition string  `json:"acquisition,omitempty"`
	Owner       string  `json:"owner,omitempty"`
	GrantedAt   Instant `json:"granted_at,omitempty"`
	ExpiresAt   Instant `json:"expires_at,omitempty"`
	NotBefore   Instant `json:"not_before,omitempty"`
	// Delay keeps the lock from others after the expiry, unless it was released.
	Delay time.Duration `json:"delay,omitempty"`
	// Permits is of slot 0, and says which other slots there are: none, any number (-1), or 1 to so many.
	Permits int `json:"permits,omitempty"`
	// RecordedAt is clock_timestamp() in the trigger: after the change was made, before it was committed.
	RecordedAt Instant `json:"recorded_at"`
}

// String shows the row as the database's log has it.
func (c Change) String() string {
	verb := "granted " + c.GrantedAt.String() + ", expires " + c.ExpiresAt.String()
	if c.Removed {
		verb = "removed"
	}
	return fmt.Sprintf("log %d: %s token %d acquisition %s: %s, recorded %s",
		c.Serial, slotted(c.Lock, c.Slot), c.Token, c.Acquisition, verb, c.RecordedAt)
}

// A HandOver permits one grant to follow another before that one's expiry: the holder gave its live lease to the next
// attempt in its own process instead of releasing it.
type HandOver struct {
	Lock string `json:"lock"`
	Slot int    `json:"slot,omitempty"`
	From string `json:"from"` // acquisition of the lease that is given away
	To   string `json:"to"`   // acquisition that may take it
}
