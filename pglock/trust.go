package pglock

import "time"

// margin is the part of a TTL that a holder does not use: it covers the drift between our clocks and the database's, and the
// time that code needs to notice a cancelled context.
func margin(ttl time.Duration) time.Duration {
	return max(ttl/10, 50*time.Millisecond)
}

// trustAfterGrant is the end of what a new holder may trust: counted from before the first sending of the acquisition, because
// the database may have granted that one though the reply was lost, and never beyond what the reply says is left, which is less where a
// release of another process has granted it.
func trustAfterGrant(firstSent, sent instant, ttl, remaining time.Duration) instant {
	return sooner(firstSent.add(ttl), sent.add(remaining)).add(-margin(min(ttl, remaining)))
}

// trustAfterRenewal counts from before the renewal was sent: a slow reply shortens trust, it never stretches it.
func trustAfterRenewal(sent instant, ttl time.Duration) instant {
	return sent.add(ttl - margin(ttl))
}
