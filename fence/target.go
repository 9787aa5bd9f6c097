package fence

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A target is a [Table] that was checked.
type target struct {
	table string // quoted
	token string
	keys  int // how many columns the key has
}

// check refuses, before any SQL, a table and rows that cannot be meant. columns are those of the key, then the others, both in a
// fixed order: a statement's text must not change from call to call.
func (t Table) check(v verb, rows []Row) (_ target, columns []string, _ error) {
	table, err := parseName(t.Name)
	if err != nil {
		return target{}, nil, err
	}
	checked := target{table: table, token: t.TokenColumn, keys: len(t.Key)}
	if checked.token == "" {
		checked.token = "fencing_token"
	}
	bad := func(format string, args ...any) (target, []string, error) {
		return target{}, nil, fmt.Errorf("fence: %s of %s: %w: "+format, append([]any{v.name, t.Name, ErrInvalid}, args...)...)
	}
	switch {
	case len(t.Key) == 0:
		return bad("the table names no key columns")
	case len(rows) == 0 || len(rows) > maxRows:
		return bad("%d rows: want 1 to %d", len(rows), maxRows)
	}
	// A tombstone is found by the key's values in a row. Sorted, so that all who name the same columns find the same one; by
	// name, because a partition may number its columns otherwise.
	columns = slices.Sorted(slices.Values(t.Key))
	for i, name := range columns {
		if slices.Contains(columns[:i], name) {
			return bad("key column %q stands twice", name)
		}
		for _, row := range rows {
			if v, ok := row[name]; !ok || v == nil {
				return bad("the row needs a value for key column %q", name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rows[0])) {
		if !slices.Contains(columns[:checked.keys], name) {
			columns = append(columns, name)
		}
	}
	for _, row := range rows[1:] {
		for _, name := range columns {
			if _, ok := row[name]; !ok || len(row) != len(columns) {
				return bad("the rows have different columns: write those with the same ones together")
			}
		}
	}
	for _, name := range append(slices.Clone(columns), checked.token) {
		if name == "" || !storable(name) {
			return bad("column name %q", name)
		}
	}
	switch {
	case slices.Contains(columns, checked.token):
		return bad("column %q is the fence's", checked.token)
	case (v.name == remove.name || v.name == rekey.name) && len(columns) > checked.keys:
		return bad("it takes the key only, not column %q", columns[checked.keys])
	}
	return checked, columns, nil
}

// parseName reads a table's name as SQL does, and quotes every part of it.
func parseName(name string) (string, error) {
	var parts pgx.Identifier
	for rest := name; ; rest = rest[1:] {
		var part string
		var ok bool
		if part, rest, ok = cutPart(rest); !ok {
			break
		}
		if parts = append(parts, part); rest == "" {
			return parts.Sanitize(), nil
		}
		if rest[0] != '.' || len(parts) == 3 {
			break
		}
	}
	return "", fmt.Errorf(`fence: %w table name %q: want it as in SQL: invoices, billing.invoices, "Odd Name"."Table"`, ErrInvalid, name)
}

// cutPart takes the first part of a name: quoted, or a word, whose capitals PostgreSQL makes small.
func cutPart(s string) (part, rest string, ok bool) {
	if quoted, found := strings.CutPrefix(s, `"`); found {
		for i := 0; i < len(quoted); i++ {
			switch {
			case quoted[i] != '"':
			case strings.HasPrefix(quoted[i:], `""`):
				i++
			default:
				part = strings.ReplaceAll(quoted[:i], `""`, `"`)
				return part, quoted[i+1:], part != "" && storable(part)
			}
		}
		return "", "", false
	}
	end := strings.IndexFunc(s, func(r rune) bool {
		return r != '_' && r != '$' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	if end < 0 {
		end = len(s)
	}
	part = strings.ToLower(s[:end])
	return part, s[end:], part != "" && (part[0] < '0' || part[0] > '9') && part[0] != '$'
}

// rowName is a row for people: the table as the caller wrote it, and the key.
func (t Table) rowName(row Row) string {
	var b strings.Builder
	b.WriteString(t.Name)
	for _, name := range t.Key {
		fmt.Fprintf(&b, " %s=%v", name, row[name])
	}
	return b.String()
}
