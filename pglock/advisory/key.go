package advisory

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Key is what PostgreSQL knows an advisory lock by: 64 bits, or two times 32, which is another space. Everybody who uses
// the same key of the same space in one database means the same lock, whatever program or language they use.
//
// Make one with [Name], [Int64] or [Int32s]. The zero Key locks nothing: every call refuses it with [ErrInvalidKey] before it
// sends anything. To tell whether two keys are one lock use [Key.Same]: a key remembers the name that it was made from.
type Key struct {
	space  space
	bits   int64 // of two halves, the first is the upper one
	label  string
	reason string // why a key is none
	_      [0]func()
}

// A space is one of the two that PostgreSQL has; its number is pg_locks.objsubid.
type space uint8

const (
	oneNumber  space = 1
	twoNumbers space = 2
)

// domain begins what is hashed: the same name hashed by another program is another key.
const domain = "github.com/fencedlock/fencedlock/pglock/advisory\x00"

// Name makes a key from a name, or from the parts of one: a namespace, say, and what is in it.
//
//	advisory.Name("reports/nightly")
//	advisory.Name("billing", "invoice-42")
//
// The parts cannot run into each other: ("ab", "c"), ("a", "bc") and ("abc") are three keys. A part is any string of any
// length, but not empty; bytes are taken as they are, so two Unicode forms of one word are two names.
//
// The key is the beginning of a SHA-256, all 64 bits of it, and worked out here: it depends neither on the server's version
// nor on its encoding, and is the same in every version of this package. That two names share a key is possible in principle, and
// then nothing can tell: among a million names the odds are one in 37 million. It may also meet a number that another
// program gives to PostgreSQL by itself, with odds of one in 2^64 for each pair.
func Name(parts ...string) Key {
	if len(parts) == 0 {
		return Key{reason: "Name was given no name"}
	}
	h := sha256.New()
	h.Write([]byte(domain))
	for i, part := range parts {
		if part == "" {
			return Key{reason: fmt.Sprintf("part %d of %d of the name is empty", i+1, len(parts))}
		}
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	return Key{space: oneNumber, bits: int64(binary.BigEndian.Uint64(h.Sum(nil))), label: label(parts)} //nolint:gosec // any 64 bits will do
}

// Int64 is the key of pg_advisory_lock(n): a lock that others know by its number.
func Int64(n int64) Key { return Key{space: oneNumber, bits: n} }

// Int32s is the key of pg_advisory_lock(a, b). It is never the same lock as one of a single number.
func Int32s(a, b int32) Key {
	return Key{space: twoNumbers, bits: int64(a)<<32 | int64(uint32(b))} //nolint:gosec // its bits
}

// Same reports whether both keys are the same lock in a database.
func (k Key) Same(other Key) bool { return k.id() == other.id() }

// Int64 is the signed number to give to PostgreSQL's own functions, pg_advisory_lock(bigint) for one. Not ok: the key has two
// numbers, or is the zero Key.
func (k Key) Int64() (n int64, ok bool) {
	if k.space != oneNumber {
		return 0, false
	}
	return k.bits, true
}

// Int32s are the two numbers of a key made by [Int32s], and ok only for such a key.
func (k Key) Int32s() (a, b int32, ok bool) {
	if k.space != twoNumbers {
		return 0, 0, false
	}
	return int32(k.bits >> 32), int32(k.bits), true //nolint:gosec // its halves
}

// PgLocks is how the view pg_locks shows the key, in its columns classid, objid and objsubid. They have no sign:
//
//	SELECT * FROM pg_locks WHERE locktype = 'advisory' AND (classid, objid, objsubid) = (…, …, …)
func (k Key) PgLocks() (classid, objid uint32, objsubid int16) {
	return uint32(uint64(k.bits) >> 32), uint32(k.bits), int16(k.space) //nolint:gosec // its halves
}

// String is the number with its sign, or the two in parentheses.
func (k Key) String() string {
	if a, b, ok := k.Int32s(); ok {
		return fmt.Sprintf("(%d,%d)", a, b)
	}
	if n, ok := k.Int64(); ok {
		return strconv.FormatInt(n, 10)
	}
	return "no key"
}

// fromPgLocks is the opposite of PgLocks.
func fromPgLocks(classid, objid int64, objsubid int16) Key {
	return Key{space: space(objsubid), bits: classid<<32 | objid} //nolint:gosec // 1 or 2
}

// An id is a key without its name, for maps.
type id struct {
	space space
	bits  int64
}

func (k Key) id() id { return id{k.space, k.bits} }

// describe is the key for messages: the name, if there is one, and the number.
func (k Key) describe() string {
	if k.label == "" {
		return "lock " + k.String()
	}
	return "lock " + k.label + " (key " + k.String() + ")"
}

func (k Key) check() error {
	if k.space != 0 {
		return nil
	}
	reason := k.reason
	if reason == "" {
		reason = "it is the zero Key"
	}
	return fmt.Errorf("%w: %s; make one with advisory.Name, Int64 or Int32s", ErrInvalidKey, reason)
}

// maxLabel bounds what a message shows of one part of a name, in bytes.
const maxLabel = 100

// label is a name for people.
func label(parts []string) string {
	shown := make([]string, len(parts))
	for i, part := range parts {
		cut := len(part)
		if cut > maxLabel {
			for cut = maxLabel; cut > maxLabel-utf8.UTFMax && !utf8.RuneStart(part[cut]); cut-- {
			}
		}
		shown[i] = strconv.Quote(part[:cut])
		if cut < len(part) {
			shown[i] += "…"
		}
	}
	return strings.Join(shown, " ")
}
