package migrations

// For tests of what has no other way in.
var (
	Render   = render
	LockKey  = lockKey
	Embedded = embedded
)
