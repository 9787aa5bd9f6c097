package migrations

import "errors"

var (
	// ErrInvalid is returned where what was passed cannot be meant: no pool, or an option that will not do. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")

	// ErrNotInstalled is returned by [Version] where the schema holds no lock protocol. Call [Up].
	ErrNotInstalled = errors.New("the lock protocol is not installed")

	// ErrChanged is returned where a file was applied with another text than this version of the library has. Until the
	// first release the files are edited in place: take the schema down and install it again.
	ErrChanged = errors.New("the schema was installed from another text")

	// ErrUnrecorded is returned where the tables are there, but not the records of the files that made them: somebody ran
	// the raw files by hand. The message has the INSERT that records them.
	ErrUnrecorded = errors.New("the schema was installed without a record")

	// ErrSettings is returned by [Up] where [Cap] or [SingleNode] is not what the schema was installed with. Neither is
	// changed by Up; the message has the SQL.
	ErrSettings = errors.New("the schema was installed with other settings")

	// ErrPrivilege is returned where the role may not do what is left to do. The message has the SQL that allows it.
	ErrPrivilege = errors.New("missing privilege")

	// ErrReadOnly is returned by [Up] and [Down] where there is something to do and the server is a standby.
	ErrReadOnly = errors.New("the server is read-only")

	// ErrInUse is returned by [Down] while locks are held, or may be held that a restart or failover has lost. Nothing was changed.
	ErrInUse = errors.New("locks are held")
)
