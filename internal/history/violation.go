package history

// A Kind is one way to break a guarantee.
type Kind string

// The kinds of violations. Each names the event at fault first in Violation.Events.
const (
	// OverlappingGrants: by the database's clock two unexpired grants excluded each other, or a token was drawn for nobody
	// while the grant before it had not expired.
	OverlappingGrants Kind = "overlapping grants"
	// WrongKind: a grant is in a slot that its name did not have, or a name became another kind while it was held. (Two
	// grants of one slot overlap, so a semaphore has no more holders than slots.)
	WrongKind Kind = "grant of another kind"
	// SplitGroup: the names of one acquisition were granted with several tokens.
	SplitGroup Kind = "group with several tokens"
	// EarlyGrant: a grant came before the instant before which its row, or one that excludes it, was to be granted to nobody.
	EarlyGrant Kind = "grant before not_before"
	// OverlappingTrust: two clients trusted grants at once that exclude each other.
	OverlappingTrust Kind = "overlapping trust windows"
	// FallingToken: a grant has a lower token than an earlier one that it excludes.
	FallingToken Kind = "falling token"
	// RepeatedToken: two acquisitions, of whatever names, have the same token.
	RepeatedToken Kind = "repeated token"
	// AcquisitionGrantedTwice: one acquisition was given two grants of a name.
	AcquisitionGrantedTwice Kind = "acquisition granted twice"
	// UngrantedToken: a client was told a token, or wrote under one, that the database never granted.
	UngrantedToken Kind = "token that was never granted"
	// StaleWrite: a write was accepted though a later token had passed its fence.
	StaleWrite Kind = "stale write"
	// SupersededWrite: a write was accepted though a later grant had written, and its token did not give it away.
	SupersededWrite Kind = "write of a superseded grant"
	// RevivedLease: a lease that had expired, was released or revoked became alive again.
	RevivedLease Kind = "revived lease"
	// FalseLoss: a client was told of a loss that the database does not bear out.
	FalseLoss Kind = "false loss"
	// BrokenRecord: the history contradicts itself, so that what Check says of it is worth nothing.
	BrokenRecord Kind = "broken record"
)

// Kinds lists every kind that Check looks for.
func Kinds() []Kind {
	return []Kind{
		OverlappingGrants, WrongKind, SplitGroup, EarlyGrant, OverlappingTrust, FallingToken, RepeatedToken, AcquisitionGrantedTwice,
		UngrantedToken, StaleWrite, SupersededWrite, RevivedLease, FalseLoss, BrokenRecord,
	}
}

// A Violation is one broken guarantee.
type Violation struct {
	Kind    Kind
	Events  []Event // the event at fault, then the one that it collides with
	Message string
}

// String is the message behind the kind, followed by the events, one a line.
func (v Violation) String() string {
	s := string(v.Kind) + ": " + v.Message
	for _, e := range v.Events {
		s += "\n\t" + e.String()
	}
	return s
}
