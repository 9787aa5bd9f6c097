package history

import (
	"errors"
	"fmt"
)

// Stats counts what a history holds. A run in which nothing happened violates nothing: compare with [Stats.AtLeast].
type Stats struct {
	Grants         int // by the database's log, told to somebody or not
	Takeovers      int // grants whose predecessor ended by its expiry and was not released
	HandOvers      int // grants whose predecessor was given away alive
	Renewals       int
	Releases       int
	Revocations    int // of grants that were taken from their holders
	Removals       int // rows deleted while their grant was neither released nor expired
	Told           int // grants that a client was told of
	Losses         int // trust windows that ended by a loss
	WritesAccepted int
	WritesRefused  int
}

// AtLeast returns an error that names every count below that of least.
func (s Stats) AtLeast(least Stats) error {
	var missing []error
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"grants", s.Grants, least.Grants},
		{"takeovers", s.Takeovers, least.Takeovers},
		{"hand-overs", s.HandOvers, least.HandOvers},
		{"renewals", s.Renewals, least.Renewals},
		{"releases", s.Releases, least.Releases},
		{"revocations", s.Revocations, least.Revocations},
		{"removals", s.Removals, least.Removals},
		{"grants told", s.Told, least.Told},
		{"losses", s.Losses, least.Losses},
		{"writes accepted", s.WritesAccepted, least.WritesAccepted},
		{"writes refused", s.WritesRefused, least.WritesRefused},
	} {
		if c.got < c.want {
			missing = append(missing, fmt.Errorf("history: %d %s, want at least %d", c.got, c.name, c.want))
		}
	}
	return errors.Join(missing...)
}
