package history_test

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/fencedlock/fencedlock/internal/history"
)

// A plant puts one event of a fault into a history and returns the event, or false if the place that chance chose does
// not suit.
type plant struct {
	kind history.Kind
	how  string
	put  func(h *history.History, rng *rand.Rand) (history.Event, bool)
}

// plants has at least one way to break each guarantee; the first of a kind is the one that the golden file shows.
var plants = []plant{
	{history.OverlappingGrants, "a takeover 1 µs before the expiry", plantOverlap},
	{history.OverlappingGrants, "a reader granted under the writer", plantReaderUnderWriter},
	{history.OverlappingGrants, "a token drawn 1 µs before the expiry of what was revoked", plantEarlyDraw},
	{history.WrongKind, "a permit too many", plantPermitTooMany},
	{history.WrongKind, "a semaphore that gets another permit while it is held", plantChangedKind},
	{history.SplitGroup, "an acquisition of another lock with another token", plantSplitGroup},
	{history.EarlyGrant, "a grant 1 µs before not_before", plantEarlyGrant},
	{history.OverlappingTrust, "a window that ends 1 ns after the next begins", plantTrustOverlap},
	{history.OverlappingTrust, "a window that never ends", plantEndlessTrust},
	{history.FallingToken, "a takeover with the token before its predecessor's", plantFallingToken},
	{history.RepeatedToken, "a token of another lock", plantRepeatedToken},
	{history.AcquisitionGrantedTwice, "a takeover by an acquisition that had been granted", plantSecondGrant},
	{history.UngrantedToken, "a client told the token after its own", plantUngrantedToken},
	{history.UngrantedToken, "a client told another's token", plantTokenOfAnother},
	{history.UngrantedToken, "a write under a token that was never granted", plantUngrantedWrite},
	{history.StaleWrite, "a write of an earlier grant", plantStaleWrite},
	{history.SupersededWrite, "a write of an earlier grant that states the later token", plantSupersededWrite},
	{history.RevivedLease, "a renewal 1 µs after the tolerance", plantLateRenewal},
	{history.RevivedLease, "a renewal after the release", plantRenewalAfterRelease},
	{history.RevivedLease, "a renewal of what was revoked", plantRenewalAfterRevocation},
	{history.FalseLoss, "a loss that nothing caused", plantFalseLoss},
	{history.BrokenRecord, "a serial that is twice in the log", plantRepeatedSerial},
}

// A succession is two changes of one row, one right after the other.
type succession struct {
	before, next history.Change
	at           int  // of next
	lone         bool // nothing else is known of next's grant, and another grant follows it
}

func (s succession) mutex() bool { return strings.HasPrefix(s.next.Lock, "mutex") }

// grant: next is a grant that follows another grant of the row.
func (s succession) grant() bool {
	return s.before.Token != 0 && s.next.Token != s.before.Token && !s.before.Removed && !s.next.Removed &&
		!isRevocation(s.before) && !isRevocation(s.next)
}

// isRevocation: nobody holds what the row says, or will.
func isRevocation(c history.Change) bool { return strings.HasPrefix(c.Acquisition, "r-") }

// takeover: next took the place of a grant that had expired.
func (s succession) takeover() bool {
	return s.grant() && s.before.ExpiresAt != 0 && s.next.GrantedAt >= s.before.ExpiresAt
}

// consecutive lists the successions in the database's order.
func consecutive(h *history.History) []succession {
	type key struct {
		lock string
		slot int
	}
	told := make(map[int64]bool)
	for _, t := range h.Trusts {
		told[t.Token] = true
	}
	last := make(map[key]int) // where in list the row was changed last
	var list []succession
	for i, c := range h.Changes {
		k := key{c.Lock, c.Slot}
		s := succession{next: c, at: i}
		if n, ok := last[k]; ok {
			s.before = list[n].next
			list[n].lone = c.Token != s.before.Token && !c.Removed && c.Token != 0 && !told[s.before.Token]
		}
		last[k] = len(list)
		list = append(list, s)
	}
	return list
}

// choose returns a random succession that fits.
func choose(h *history.History, rng *rand.Rand, fits func(succession) bool) (succession, bool) {
	list := slices.DeleteFunc(consecutive(h), func(s succession) bool { return !fits(s) })
	if len(list) == 0 {
		return succession{}, false
	}
	return list[rng.IntN(len(list))], true
}

// insert puts a change right after the one at that place.
func insert(h *history.History, at int, c history.Change) history.Event {
	c.Serial = h.Changes[at].Serial + 1
	h.Changes = slices.Insert(h.Changes, at+1, c)
	return c
}
