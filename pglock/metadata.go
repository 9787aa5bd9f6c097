package pglock

import (
	"errors"
	"strconv"
	"unicode/utf16"
)

// storable refuses what is valid JSON and yet no jsonb: U+0000 and unpaired surrogates, both of which only an escape can hold.
// A number that is too large for PostgreSQL is left to it.
func storable(json []byte) error {
	high := false // the escape just before was the first half of a pair
	for i := 0; i < len(json); i++ {
		if json[i] != '\\' {
			if high {
				return errSurrogate
			}
			continue
		}
		i++ // the character after the backslash, which valid JSON has
		if json[i] != 'u' {
			if high {
				return errSurrogate
			}
			continue
		}
		n, err := strconv.ParseUint(string(json[i+1:i+5]), 16, 16)
		if err != nil {
			return err
		}
		i += 4
		r := rune(n)
		low := utf16.IsSurrogate(r) && r >= 0xDC00
		switch {
		case r == 0:
			return errors.New("it holds the character U+0000, which jsonb cannot store")
		case low != high:
			return errSurrogate
		}
		high = utf16.IsSurrogate(r) && !low
	}
	return nil // a string ends with a quote, so no half pair is left over
}

var errSurrogate = errors.New("it holds an unpaired surrogate, which jsonb cannot store")
