package advisory_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// The keys of names, worked out by another program. They never change: two versions of a service that run side by side must
// mean the same lock.
var golden = []struct {
	parts []string
	key   int64
}{
	{[]string{"reports/nightly"}, -2330847330894728120},
	{[]string{"billing", "invoice-42"}, 3007809689728660344},
	{[]string{"a"}, -7635632109827607803},
	{[]string{"ab", "c"}, 3150841987071253145},
	{[]string{"a", "bc"}, -8945518430219688351},
	{[]string{"abc"}, -1449427424683493812},
	{[]string{" "}, 9151068126227433655},
	{[]string{"a\x00b"}, 1351489521115353176},
	{[]string{"\xff"}, 1388802314166394900},
	{[]string{"\u00e9"}, -6906735399524079460},
	{[]string{"e\u0301"}, 8720559538061261246},
	{[]string{"用户"}, 3855255140295682285},
	{[]string{"'; drop table x;--"}, 25541904372620944},
	{[]string{strings.Repeat("x", 1<<20)}, 5012904155302803455},
}

func TestTheKeyOfANameNeverChanges(t *testing.T) {
	t.Parallel()
	for _, g := range golden {
		if n, ok := advisory.Name(g.parts...).Int64(); n != g.key || !ok {
			t.Errorf("Name(%.40q) = %d, %v, want %d", g.parts, n, ok, g.key)
		}
	}
}

// What 200,000 names of the usual kinds share would be seen here: all 64 bits are used, and nothing else of the name.
func TestNamesDoNotShareKeys(t *testing.T) {
	t.Parallel()
	seen := make(map[int64]string, 200_000)
	var ones, zeros uint64
	var bytes [8]map[byte]bool
	for i := range bytes {
		bytes[i] = map[byte]bool{}
	}
	for i := range 200_000 {
		name := fmt.Sprintf("tenant-%d/job-%d", i%100, i)
		if i%2 == 0 {
			name = fmt.Sprint(rand.Uint64(), rand.Uint64())
		}
		n, _ := advisory.Name(name).Int64()
		if other, twice := seen[n]; twice && other != name {
			t.Fatalf("%q and %q share the key %d", name, other, n)
		}
		seen[n] = name
		ones, zeros = ones|uint64(n), zeros|^uint64(n)
		for b, v := range binary.BigEndian.AppendUint64(nil, uint64(n)) {
			bytes[b][v] = true
		}
	}
	if ones != math.MaxUint64 || zeros != math.MaxUint64 {
		t.Errorf("some bits never vary: %064b, %064b", ones, zeros)
	}
	for i, values := range bytes {
		if len(values) != 256 {
			t.Errorf("byte %d takes %d values of 256", i, len(values))
		}
	}
}

// Every way to cut a string into parts is a key of its own.
func TestPartsOfANameDoNotRunIntoEachOther(t *testing.T) {
	t.Parallel()
	const whole = "a/\x00\x00\x01:b"
	seen := map[string][]string{}
	for cuts := range 1 << (len(whole) - 1) {
		parts := []string{whole[:1]}
		for i := 1; i < len(whole); i++ {
			if cuts>>(i-1)&1 == 1 {
				parts = append(parts, "")
			}
			parts[len(parts)-1] += whole[i : i+1]
		}
		key := advisory.Name(parts...).String()
		if other, twice := seen[key]; twice {
			t.Errorf("%q and %q share the key %s", parts, other, key)
		}
		seen[key] = parts
	}
	// A length inside of a part is not taken for one between parts.
	length := string(binary.BigEndian.AppendUint64(nil, 1))
	if advisory.Name("a"+length+"b").Same(advisory.Name("a", "b")) || advisory.Name("a", "b").Same(advisory.Name("b", "a")) {
		t.Error("different parts share a key")
	}
}

func TestTheTwoSpacesOfKeysAreApart(t *testing.T) {
	t.Parallel()
	if advisory.Int32s(0, 7).Same(advisory.Int64(7)) {
		t.Error("(0,7) is 7")
	}
	if !advisory.Int64(7).Same(advisory.Int64(7)) || !advisory.Name("a").Same(advisory.Int64(-7635632109827607803)) {
		t.Error("a key is not the same as itself")
	}
	if _, ok := advisory.Int32s(0, 7).Int64(); ok {
		t.Error("(0,7) has one number")
	}
	if _, _, ok := advisory.Int64(7).Int32s(); ok {
		t.Error("7 has two numbers")
	}
	if a, b, ok := advisory.Int32s(-1, math.MinInt32).Int32s(); a != -1 || b != math.MinInt32 || !ok {
		t.Errorf("(-1,-2147483648) = %d, %d, %v", a, b, ok)
	}
}

// PostgreSQL takes the signed number, and shows it as PgLocks says: for numbers of either sign, in both spaces.
func TestKeysAreWhatPgLocksShows(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	conn := d.Conn(t)
	ctx := soon(t)
	for _, key := range []advisory.Key{
		advisory.Name("a"), advisory.Name("abc"), advisory.Name(" "), advisory.Int64(0), advisory.Int64(-1), advisory.Int64(math.MaxInt64),
		advisory.Int64(math.MinInt64), advisory.Int64(1 << 31), advisory.Int64(-1 << 31), advisory.Int64(1<<32 - 1),
		advisory.Int32s(0, 0), advisory.Int32s(-1, 1), advisory.Int32s(1, -1), advisory.Int32s(math.MinInt32, math.MaxInt32),
	} {
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock`+strings.Trim("("+strings.Trim(key.String(), "()")+")", " ")); err != nil {
			t.Fatalf("lock %v: %v", key, err)
		}
		var classid, objid uint32
		var objsubid int16
		err := conn.QueryRow(ctx, `SELECT classid, objid, objsubid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`).
			Scan(&classid, &objid, &objsubid)
		if err != nil {
			t.Fatal(err)
		}
		wantClass, wantObj, wantSub := key.PgLocks()
		if classid != wantClass || objid != wantObj || objsubid != wantSub {
			t.Errorf("%v is (%d, %d, %d) in pg_locks, PgLocks says (%d, %d, %d)", key, classid, objid, objsubid, wantClass, wantObj, wantSub)
		}
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`); err != nil {
			t.Fatal(err)
		}
	}
}

// A key that is none is refused before anything is sent: there is no server here to send it to.
func TestAnInvalidKeyIsRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	c := nowhere(t)
	for what, key := range map[string]advisory.Key{
		"the zero Key": {}, "Name()": advisory.Name(), `Name("")`: advisory.Name(""), `Name("a", "")`: advisory.Name("a", ""),
	} {
		_, err := c.TryAcquire(soon(t), key)
		wantErr(t, "TryAcquire of "+what, err, advisory.ErrInvalidKey)
		_, err = c.Acquire(soon(t), key)
		wantErr(t, "Acquire of "+what, err, advisory.ErrInvalidKey)
		wantErr(t, "Do of "+what, c.Do(soon(t), key, func(context.Context) error { return nil }), advisory.ErrInvalidKey)
		wantErr(t, "Tx.TryAcquire of "+what, advisory.InTx(nil).TryAcquire(soon(t), key), advisory.ErrInvalidKey)
		wantErr(t, "Tx.Acquire of "+what, advisory.InSQLTx(nil).Acquire(soon(t), key), advisory.ErrInvalidKey)
		_, err = advisory.List(soon(t), nil, key)
		wantErr(t, "List of "+what, err, advisory.ErrInvalidKey)
		if key.String() != "no key" {
			t.Errorf("%s is %s", what, key)
		}
	}
}
