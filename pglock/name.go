package pglock

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxName is the longest lock name, in bytes: far below what an index entry of PostgreSQL can hold.
const maxName = 255

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(name) > maxName:
		return fmt.Errorf("%w: %q… has %d bytes, at most %d are allowed", ErrInvalidName, strings.ToValidUTF8(name[:32], "?"), len(name), maxName)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%w: %q holds a NUL byte, which PostgreSQL cannot store", ErrInvalidName, name)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %q is not valid UTF-8", ErrInvalidName, name)
	}
	return nil
}
