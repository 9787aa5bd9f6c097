package fence

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A verb is what is done to a row, and the statement that does it.
type verb struct {
	name string
	sql  string
}

// The statements share their parts. _k is the key: the empty SELECT gives the parameters the types of the columns. _r is the
// row that is there, locked: PostgreSQL hands out the newest version under the lock, where a plain look would see what was
// there when the statement began. _g is the token of the tombstone, under the lock of the key. _w is the write. At the end
// stands one answer: see type answer. Where a later look must see more than the statement's snapshot, a function looks.
const keyPart = `WITH _k AS MATERIALIZED (
  SELECT {key} FROM {table} AS t WHERE false UNION ALL SELECT {key args}),
`

// The other verbs ask for a credible token where they lock the key.
var update = verb{"update", keyPart + `_c AS MATERIALIZED (
  SELECT {pglock}.fence_credible({grant}) AS ok),
_r AS MATERIALIZED (
  SELECT coalesce(t.{token}, 0) AS last FROM {table} AS t, _k WHERE {match} AND (SELECT ok FROM _c) FOR NO KEY UPDATE OF t),
_w AS (
  UPDATE {table} AS t SET {sets}{token} = $1::bigint FROM _k, _r
  WHERE {match} AND _r.last {older} $1::bigint AND (SELECT count(*) FROM _r) = 1 RETURNING true)
SELECT EXISTS (SELECT FROM _w), (SELECT ok FROM _c), x.n, x.last,
  CASE WHEN x.n = 0 THEN {pglock}.fence_row_tombstone({rel}, ROW({k.key})) ELSE 0 END,
  x.n = 0 AND EXISTS (SELECT FROM {table} AS t, _k WHERE {match})
FROM _k, (SELECT count(*) AS n, coalesce(max(last), 0) AS last FROM _r) AS x`}

// The key is locked before the row, as in inserts. Where no row is in sight nothing is locked.
var remove = verb{"delete", keyPart + `_g AS MATERIALIZED (
  SELECT {pglock}.fence_row_lock({rel}, ROW({k.key}), {grant}) AS last FROM _k
  WHERE EXISTS (SELECT FROM {table} AS t, _k WHERE {match})),
_r AS MATERIALIZED (
  SELECT coalesce(t.{token}, 0) AS last FROM {table} AS t, _k, _g WHERE {match} AND _g.last IS NOT NULL FOR UPDATE OF t),
_w AS (
  DELETE FROM {table} AS t USING _k, _r
  WHERE {match} AND _r.last {older} $1::bigint AND (SELECT count(*) FROM _r) = 1 RETURNING true)
SELECT EXISTS (SELECT FROM _w) AND {pglock}.fence_row_bury({rel}, ROW({k.key}), {grant}),
  NOT EXISTS (SELECT FROM _g WHERE last IS NULL), x.n, x.last,
  CASE WHEN x.n = 0 THEN {pglock}.fence_row_tombstone({rel}, ROW({k.key})) ELSE 0 END,
  x.n = 0 AND EXISTS (SELECT FROM _g)
FROM _k, (SELECT count(*) AS n, coalesce(max(last), 0) AS last FROM _r) AS x`}

var (
	insert = verb{"insert", insertPart("DO NOTHING")}
	upsert = verb{"upsert", insertPart("DO UPDATE SET {excluded}{token} = excluded.{token} WHERE coalesce(t.{token}, 0) {older} excluded.{token}")}
)

// The row that is in the way is only looked at when nothing was written. FOR KEY SHARE would be content with an old version.
func insertPart(conflict string) string {
	return keyPart + `_g AS MATERIALIZED (
  SELECT {pglock}.fence_row_lock({rel}, ROW({k.key}), {grant}) AS last FROM _k),
_w AS (
  INSERT INTO {table} AS t ({key}, {columns}{token}) SELECT {k.key}, {args}$1::bigint FROM _k, _g WHERE _g.last {older} $1::bigint
  ON CONFLICT ({key}) ` + conflict + ` RETURNING {t.key}),
_r AS MATERIALIZED (
  SELECT coalesce(t.{token}, 0) AS last FROM {table} AS t, _k, _g
  WHERE {match} AND _g.last {older} $1::bigint AND NOT EXISTS (SELECT FROM _w) FOR SHARE OF t)
SELECT CASE WHEN ROW({w.key}) IS NULL THEN false
    WHEN _g.last = 0 AND ROW({k.key}) = ROW({w.key}) THEN true
    ELSE {pglock}.fence_row_revive({rel}, ROW({k.key}), ROW({w.key}), {grant}) END,
  _g.last IS NOT NULL, x.n, x.last, coalesce(_g.last, 0),
  (ROW({w.key}) IS NULL AND x.n = 0 AND _g.last {older} $1::bigint) IS TRUE
FROM _k CROSS JOIN _g CROSS JOIN (SELECT count(*) AS n, coalesce(max(last), 0) AS last FROM _r) AS x LEFT JOIN _w ON true`
}

// A statement is ready to be sent. Its text depends on the names of the columns only.
type statement struct {
	sql  string
	args []any
}

// arg adds a parameter and returns its placeholder. Its type is what the server finds for its place.
func (s *statement) arg(v any) string {
	s.args = append(s.args, v)
	return "$" + strconv.Itoa(len(s.args))
}

// render writes the statement of a verb. Key columns come first in columns, then those to write.
func (t target) render(v verb, g Grant, columns []string, row Row, cfg config) statement {
	var s statement
	s.arg(int64(g.Token)) // $1 everywhere
	rel := s.arg(t.table) + "::text::regclass"

	var key, tKey, kKey, wKey, match, keyArgs []string
	for _, name := range columns[:t.keys] {
		c := quote(name)
		key, tKey, kKey, wKey = append(key, c), append(tKey, "t."+c), append(kKey, "_k."+c), append(wKey, "_w."+c)
		match = append(match, "t."+c+" = _k."+c)
		keyArgs = append(keyArgs, s.arg(row[name]))
	}
	var list, args, sets, excluded strings.Builder
	for _, name := range columns[t.keys:] {
		c, p := quote(name), s.arg(row[name])
		list.WriteString(c + ", ")
		args.WriteString(p + ", ")
		sets.WriteString(c + " = " + p + ", ")
		excluded.WriteString(c + " = excluded." + c + ", ")
	}
	grant := s.arg(g.Lock) + "::text, " + s.arg(g.Slot) + "::int, $1::bigint"
	older := "<"
	if cfg.again {
		older = "<="
	}
	s.sql = strings.NewReplacer(
		"{table}", t.table, "{token}", quote(t.token), "{rel}", rel, "{grant}", grant, "{older}", older,
		"{pglock}", cfg.quoted(), "{match}", strings.Join(match, " AND "),
		"{key}", join(key), "{t.key}", join(tKey), "{k.key}", join(kKey), "{w.key}", join(wKey), "{key args}", join(keyArgs),
		"{columns}", list.String(), "{args}", args.String(), "{sets}", sets.String(), "{excluded}", excluded.String(),
	).Replace(v.sql)
	return s
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func join(parts []string) string { return strings.Join(parts, ", ") }
