package migrations

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// render rewrites a file that was written for schema pglock for another one: every whole word pglock outside comments
// becomes the quoted name. Inside a literal the quotes of the name are doubled, which makes 'pglock.leases'::regclass
// right. The bodies of functions are code like the rest: a name cannot contain the $$ that ends them.
func render(sql, schema string) string {
	if schema == DefaultSchema {
		return sql // to the letter: what is recorded and what psql runs are the same
	}
	name := pgx.Identifier{schema}.Sanitize()
	inLiteral := strings.ReplaceAll(name, "'", "''")

	var out strings.Builder
	literal := false
	for i := 0; i < len(sql); {
		n := tokenLen(sql[i:], literal)
		tok := sql[i : i+n]
		switch {
		case tok == "'":
			literal = !literal // '' inside a literal ends it and begins it again: the same thing here
			out.WriteString(tok)
		case (tok == DefaultSchema || tok == `"`+DefaultSchema+`"`) && literal:
			out.WriteString(inLiteral)
		case tok == DefaultSchema || tok == `"`+DefaultSchema+`"`:
			out.WriteString(name)
		default:
			out.WriteString(tok)
		}
		i += n
	}
	return out.String()
}

// tokenLen is the length of the comment, quoted identifier, word or single byte that sql begins with.
func tokenLen(sql string, literal bool) int {
	quoted := `"` + DefaultSchema + `"`
	switch {
	case strings.HasPrefix(sql, quoted):
		return len(quoted)
	case isWord(sql[0]) && sql[0] != '$': // $$ begins and ends a body and belongs to no word
		n := 1
		for n < len(sql) && isWord(sql[n]) {
			n++
		}
		return n
	case literal:
		return 1
	case strings.HasPrefix(sql, "--"):
		return upTo(sql, "\n")
	case strings.HasPrefix(sql, "/*"):
		return upTo(sql, "*/") // the files nest no comments
	case sql[0] == '"':
		return 1 + upTo(sql[1:], `"`)
	}
	return 1
}

// upTo is the length of the text up to and with the first end, or all of it.
func upTo(s, end string) int {
	if i := strings.Index(s, end); i >= 0 {
		return i + len(end)
	}
	return len(s)
}

func isWord(b byte) bool {
	return b == '_' || b == '$' || b >= 0x80 || '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}
