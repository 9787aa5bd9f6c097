package fence

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// A verb is what is done to rows, and the statement that does it; to one row, where another one costs half.
type verb struct {
	name string
	sql  string
	one  string
}

// The statements share their parts. _k has the keys and what is to be written, a row for each, numbered from 1: row 0, which is
// not there, gives the parameters the types of the columns. _r is the rows that are there, locked: PostgreSQL hands out the newest
// version under the lock, where a plain look would see what was there when the statement began. _g is the tokens of the
// tombstones, under the locks of the keys. _w is the write: of all rows or of none. At the end stands one answer for each row:
// see type answer. Where a later look must see more than the statement's snapshot, a function looks. What is locked is locked in
// the order of the keys, so that statements over the same rows do not deadlock. What was written is looked at as it came to be stored: a
// trigger that puts another token or key there would open the fence.
const keyPart = `WITH _k (n, {k columns}) AS MATERIALIZED ({values}),
`

// The other verbs ask for a credible token where they lock the key.
var update = verb{name: "update", one: updateOne, sql: keyPart + `_c AS MATERIALIZED (
  SELECT {pglock}.fence_credible({grant}) AS ok),
_r AS MATERIALIZED (
  SELECT _k.n, coalesce(t.{token}, 0) AS last FROM {table} AS t, _k WHERE {match} AND (SELECT ok FROM _c) {by t.key} FOR NO KEY UPDATE OF t),
_w ({w returned}n, {w key}, last) AS (
  UPDATE {table} AS t SET {sets}{token} = $1::bigint FROM _k
  WHERE {match} AND {each once} RETURNING {t.returned}_k.n, {t.key}, t.{token}){whole}
{answers}SELECT _k.n, CASE WHEN (_w.n IS NOT NULL{is whole}) IS NOT TRUE THEN false
    WHEN {meant} = {stored} THEN true ELSE {pglock}.fence_kept({meant}, {stored}) END, (SELECT ok FROM _c), coalesce(x.rows, 0), coalesce(x.last, 0),
  CASE WHEN x.rows IS NULL THEN {pglock}.fence_row_tombstone({rel}, ROW({k.key})) ELSE 0 END,
  x.rows IS NULL AND EXISTS (SELECT FROM {table} AS t WHERE {match}){_w.returned}
FROM _k LEFT JOIN {found} LEFT JOIN _w ON _w.n = _k.n{end}`}

// A row by itself is compared by its UPDATE, which looks again at what it waited for, and locked to be looked at only where nothing
// was written. What rules are on, a view above all, is locked before: a rule or trigger that updates another table instead looks
// at the key alone when it has waited. A token that stands there already is as credible as it will be. Of _k the tombstone's key is
// read, whose types and collations are those of the columns; the rest of it gives the parameters theirs.
const updateOne = keyPart + `_w ({w returned}n, {w key}, last) AS (
  UPDATE {table} AS t SET {sets}{token} = $1::bigint
  WHERE {match} AND coalesce(t.{token}, 0) {older} $1::bigint AND (t.{token} = $1::bigint OR (SELECT {pglock}.fence_credible({grant})))
    AND CASE WHEN (SELECT NOT relhasrules FROM pg_catalog.pg_class WHERE oid = {rel}) THEN (SELECT count(*) FROM {table} AS t WHERE {match}) = 1
    ELSE (SELECT {only older} FROM (SELECT coalesce(t.{token}, 0) AS last FROM {table} AS t WHERE {match} FOR NO KEY UPDATE OF t) AS _r) END
  RETURNING {t.returned}1, {t.key}, t.{token})
{answers}SELECT 1, CASE WHEN _w.n IS NULL THEN false
    WHEN {meant} = {stored} THEN true ELSE {pglock}.fence_kept({meant}, {stored}) END,
  CASE WHEN _w.n IS NULL THEN {pglock}.fence_credible({grant}) ELSE true END, x.rows, coalesce(x.last, 0),
  CASE WHEN _w.n IS NULL AND x.rows = 0 THEN (SELECT {pglock}.fence_row_tombstone({rel}, ROW({k.key})) FROM _k) ELSE 0 END,
  CASE WHEN _w.n IS NOT NULL THEN false WHEN x.rows = 0 THEN EXISTS (SELECT FROM {table} AS t WHERE {match})
    ELSE x.rows = 1 AND x.last {older} $1::bigint END{_w.returned}
FROM (SELECT) AS _one LEFT JOIN _w ON true LEFT JOIN LATERAL (
  SELECT count(*) AS rows, max(_r.last) AS last FROM (
    SELECT coalesce(t.{token}, 0) AS last FROM {table} AS t WHERE {match} AND _w.n IS NULL FOR NO KEY UPDATE OF t) AS _r) AS x ON true{end}`

// The key is locked before the row, as in inserts. Where no row is in sight nothing is locked.
var remove = verb{name: "delete", sql: keyPart + `_g AS MATERIALIZED (
  SELECT _k.n, {pglock}.fence_row_lock({rel}, ROW({k.key}), {grant}) AS last
  FROM (SELECT * FROM _k WHERE EXISTS (SELECT FROM {table} AS t WHERE {match}) {by k.key} OFFSET 0) AS _k),
_r AS MATERIALIZED (
  SELECT _k.n, coalesce(t.{token}, 0) AS last FROM {table} AS t, _k
  WHERE {match} AND (SELECT bool_and(last IS NOT NULL) FROM _g) {by t.key} FOR UPDATE OF t),
_w ({w returned}n) AS (
  DELETE FROM {table} AS t USING _k WHERE {match} AND {each once} RETURNING {t.returned}_k.n){whole}
{answers}SELECT _k.n, CASE WHEN _w.n IS NOT NULL{is whole} THEN {pglock}.fence_row_bury({rel}, ROW({k.key}), {grant}) ELSE false END,
  _g.n IS NULL OR _g.last IS NOT NULL, coalesce(x.rows, 0), coalesce(x.last, 0),
  CASE WHEN x.rows IS NULL THEN {pglock}.fence_row_tombstone({rel}, ROW({k.key})) ELSE 0 END,
  x.rows IS NULL AND _g.n IS NOT NULL{_w.returned}
FROM _k LEFT JOIN {found} LEFT JOIN _w ON _w.n = _k.n LEFT JOIN _g ON _g.n = _k.n{end}`}

var (
	insert = verb{name: "insert", sql: insertPart("FOR SHARE", "true", "DO NOTHING")}
	upsert = verb{name: "upsert", sql: insertPart("FOR NO KEY UPDATE", "NOT last {older} $1::bigint",
		"DO UPDATE SET {excluded}{token} = excluded.{token} WHERE coalesce(t.{token}, 0) {older} excluded.{token}")}
)

// A row that came after the snapshot is not in _r: the conflict finds it. FOR KEY SHARE would be content with an old version.
func insertPart(strength, inTheWay, conflict string) string {
	return keyPart + `_g AS MATERIALIZED (
  SELECT _k.n, {pglock}.fence_row_lock({rel}, ROW({k.key}), {grant}) AS last FROM (SELECT * FROM _k {by k.key} OFFSET 0) AS _k),
_r AS MATERIALIZED (
  SELECT _k.n, coalesce(t.{token}, 0) AS last FROM {table} AS t, _k WHERE {match} AND {keys free} {by t.key} ` + strength + ` OF t),
_w ({w returned}{w key}, last) AS (
  INSERT INTO {table} AS t ({columns}, {token}) SELECT {k.columns}, $1::bigint FROM _k
  WHERE {keys free} AND NOT EXISTS (SELECT FROM _r WHERE ` + inTheWay + `) {by k.key}
  ON CONFLICT ({key}) ` + conflict + ` RETURNING {t.returned}{t.key}, t.{token}){whole inserted}
{answers}SELECT _k.n, CASE WHEN (_w.k1 IS NOT NULL{is whole}) IS NOT TRUE THEN false
    WHEN _w.last IS DISTINCT FROM $1::bigint THEN {pglock}.fence_kept({meant}, {stored})
    WHEN _g.last = 0 AND ROW({k.key}) = ROW({_w.key}) THEN true
    ELSE {pglock}.fence_row_revive({rel}, ROW({k.key}), ROW({_w.key}), {grant}) END,
  _g.last IS NOT NULL, coalesce(x.rows, 0), coalesce(x.last, 0), coalesce(_g.last, 0),
  (_w.k1 IS NULL AND x.rows IS NULL AND _g.last {older} $1::bigint) IS TRUE{_w.returned}
FROM _k JOIN _g ON _g.n = _k.n LEFT JOIN {found} LEFT JOIN _w ON {w match}{end}`
}

// The first key is that of the row, the second the one that it gets: a delete here, an insert there.
var rekey = verb{name: "rekey", sql: keyPart + `_g AS MATERIALIZED (
  SELECT _k.n, {pglock}.fence_row_lock({rel}, ROW({k.key}), {grant}) AS last FROM (SELECT * FROM _k {by k.key} OFFSET 0) AS _k),
_r AS MATERIALIZED (
  SELECT _k.n, coalesce(t.{token}, 0) AS last FROM {table} AS t, _k
  WHERE {match} AND (SELECT bool_and(last IS NOT NULL) FROM _g) {by t.key} FOR UPDATE OF t),
_w ({w returned}{w key}, last) AS (
  UPDATE {table} AS t SET {new key}{token} = $1::bigint FROM _k, _k AS _new
  WHERE {match} AND _k.n = 1 AND _new.n = 2 AND (SELECT count(*) = 1 AND bool_and(n = 1 AND last {older} $1::bigint) FROM _r)
    AND (SELECT last {older} $1::bigint FROM _g WHERE n = 2) RETURNING {t.returned}{t.key}, t.{token})
{answers}SELECT _k.n, CASE WHEN _w.k1 IS NULL THEN false
    WHEN _k.n = 1 THEN {pglock}.fence_row_bury({rel}, ROW({k.key}), {grant})
    WHEN _w.last IS DISTINCT FROM $1::bigint THEN {pglock}.fence_kept({meant}, {stored})
    ELSE {pglock}.fence_row_revive({rel}, ROW({k.key}), ROW({_w.key}), {grant}) END,
  _g.last IS NOT NULL, coalesce(x.rows, 0), coalesce(x.last, 0), CASE WHEN x.rows IS NULL THEN coalesce(_g.last, 0) ELSE 0 END,
  _k.n = 1 AND x.rows IS NULL AND EXISTS (SELECT FROM {table} AS t WHERE {match}){_w.returned}
FROM _k JOIN _g ON _g.n = _k.n LEFT JOIN {found} LEFT JOIN _w ON true{end}`}

// The lock service that has never granted the token which was there has lost its memory: that is looked up for what is refused.
const answersPart = `SELECT pg_catalog.pg_backend_pid(), a.wrote, a.credible, a.rows, a.last, a.tombstone, a.moved,
  CASE WHEN greatest(a.last, a.tombstone) > $1::bigint
    THEN {pglock}.fence_behind({lock}, greatest(a.last, a.tombstone)) ELSE false END{a.returned}
FROM (
`

// A statement is ready to be sent. Its text depends on the names of the columns and on how many rows there are, and on nothing
// else.
type statement struct {
	sql  string
	args []any
}

// arg adds a parameter and returns its placeholder. Its type is what the server finds for its place.
func (s *statement) arg(v any) string {
	s.args = append(s.args, v)
	return "$" + strconv.Itoa(len(s.args))
}

// text adds a name: as bytes where it is not all ASCII, since the client_encoding of the session could make another name of it.
func (s *statement) text(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return "pg_catalog.convert_from(" + s.arg([]byte(name)) + "::bytea, 'UTF8')"
	}
	return s.arg(name) + "::text"
}

// render writes the statement of a verb. Key columns come first in columns, then those to write; returned are those to be given
// back.
func (t target) render(v verb, g Grant, columns []string, rows []Row, returned []string, cfg config) statement {
	s := statement{args: []any{int64(g.Token), t.table}}
	for _, row := range rows {
		for _, name := range columns {
			s.args = append(s.args, row[name])
		}
	}
	s.args = append(s.args, g.Lock, g.Slot)
	shape := strings.Join(slices.Concat([]string{v.name, t.table, t.token, cfg.schema, strconv.FormatBool(cfg.again), strconv.Itoa(t.keys), strconv.Itoa(len(rows))},
		columns, []string{""}, returned), "\x00")
	s.sql = texts.get(shape, func() string { return t.text(v, columns, len(rows), returned, cfg) })
	return s
}

// texts keeps what text has written for a single row or a few: to write it takes longer than the server needs for the row.
var texts = cache{texts: map[string]string{}}

// maxTexts bounds what is kept, for programs whose columns are ever others.
const maxTexts = 1000

type cache struct {
	mu    sync.RWMutex
	texts map[string]string
}

func (c *cache) get(shape string, write func() string) string {
	c.mu.RLock()
	text, ok := c.texts[shape]
	c.mu.RUnlock()
	if ok {
		return text
	}
	text = write()
	if len(text) < 8192 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.texts) >= maxTexts {
			clear(c.texts)
		}
		c.texts[shape] = text
	}
	return text
}

// text is the SQL of a statement for so many rows.
func (t target) text(v verb, columns []string, n int, returned []string, cfg config) string {
	next := 2
	placeholder := func() string { next++; return "$" + strconv.Itoa(next) }
	const rel = "$2::text::regclass" // $1 is the token everywhere

	sql, single := v.sql, n == 1 && v.one != ""
	if single {
		sql = v.one
	}
	values, placeholders := make([]string, n), make([][]string, n)
	for i := range values {
		for range columns {
			placeholders[i] = append(placeholders[i], placeholder())
		}
		values[i] = join(append([]string{strconv.Itoa(i + 1)}, placeholders[i]...))
	}
	var all, no, kAll, kDotAll, given []string // the columns, as the table and as _k has them; and what a statement compares and writes
	var sets, excluded, newKey strings.Builder
	for i, name := range columns {
		c, k := quote(name), "k"+strconv.Itoa(i+1)
		all, kAll, kDotAll, given = append(all, c), append(kAll, k), append(kDotAll, "_k."+k), append(given, "_k."+k)
		if single {
			given[i] = placeholders[0][i]
		}
		no = append(no, "(SELECT t."+c+" FROM "+t.table+" AS t WHERE false)")
		if i < t.keys {
			newKey.WriteString(c + " = _new." + k + ", ")
			continue
		}
		sets.WriteString(c + " = " + given[i] + ", ")
		excluded.WriteString(c + " = excluded." + c + ", ")
	}
	var match, wMatch []string
	for i := range t.keys {
		match = append(match, "t."+all[i]+" = "+given[i])
		wMatch = append(wMatch, "_w."+kAll[i]+" = "+kDotAll[i])
	}
	var wReturned, tReturned, result, names, again strings.Builder
	for i, name := range returned {
		r := "r" + strconv.Itoa(i+1)
		wReturned.WriteString(r + ", ")
		tReturned.WriteString("t." + quote(name) + ", ")
		result.WriteString(", _w." + r)
		names.WriteString(", " + r)
		again.WriteString(", a." + r)
	}
	lock := placeholder() + "::text, " + placeholder() + "::int"
	grant := lock + ", $1::bigint"
	answers := strings.NewReplacer("{pglock}", cfg.quoted(), "{lock}", lock, "{a.returned}", again.String()).Replace(answersPart)
	older := "<"
	if cfg.again {
		older = "<="
	}
	key, kKey, tKey := join(all[:t.keys]), join(kDotAll[:t.keys]), "t."+strings.Join(all[:t.keys], ", t.")
	end := "\n) AS a (n, wrote, credible, rows, last, tombstone, moved" + names.String() + ")"
	if n > 1 {
		end += " ORDER BY a.n"
	}
	wKey := "_w." + strings.Join(kAll[:t.keys], ", _w.")
	parts := []string{
		"{meant}", "ROW(" + join(given[:t.keys]) + ", $1::bigint)", "{stored}", "ROW(" + wKey + ", _w.last)",
		"{table}", t.table, "{token}", quote(t.token), "{rel}", rel, "{grant}", grant, "{older}", older, "{pglock}", cfg.quoted(),
		"{match}", strings.Join(match, " AND "), "{new key}", newKey.String(),
		"{columns}", join(all), "{k columns}", join(kAll), "{k.columns}", join(kDotAll),
		"{key}", key, "{t.key}", tKey, "{k.key}", kKey, "{w key}", join(kAll[:t.keys]), "{_w.key}", wKey,
		"{sets}", sets.String(), "{excluded}", excluded.String(),
		"{w returned}", wReturned.String(), "{t.returned}", tReturned.String(), "{_w.returned}", result.String(),
		"{answers}", answers, "{end}", end,
		"{keys free}", "(SELECT bool_and(last " + older + " $1::bigint) FROM _g)",
	}
	onlyOlder := "count(*) = 1 AND bool_and(last " + older + " $1::bigint)"
	if n == 1 { // which needs no order, and cannot be written in part
		parts = append(parts, "{values}", "SELECT 0, "+join(all)+" FROM "+t.table+" AS t WHERE false UNION ALL SELECT "+values[0],
			"{found}", "(SELECT nullif(count(*), 0) AS rows, max(last) AS last FROM _r) AS x ON true",
			"{by t.key}", "", "{by k.key}", "", "{whole}", "", "{whole inserted}", "", "{is whole}", "", "{w match}", "true",
			"{each once}", "(SELECT "+onlyOlder+" FROM _r)", "{only older}", onlyOlder)
	} else {
		count := strconv.Itoa(n)
		const whole = ",\n_t AS MATERIALIZED (SELECT {pglock}.fence_whole((SELECT count(*) FROM _w), (SELECT count(*) FROM _w{joined}), {n}) AS ok)"
		replace := strings.NewReplacer("{pglock}", cfg.quoted(), "{n}", count, "{joined}", "")
		inserted := strings.NewReplacer("{pglock}", cfg.quoted(), "{n}", count, "{joined}", ", _k WHERE "+strings.Join(wMatch, " AND "))
		parts = append(parts, "{values}", "SELECT * FROM (VALUES (0, "+join(no)+"), ("+strings.Join(values, "), (")+")) AS v (n) WHERE n > 0",
			"{found}", "(SELECT n, count(*) AS rows, max(last) AS last FROM _r GROUP BY n) AS x ON x.n = _k.n",
			"{by t.key}", "ORDER BY "+tKey, "{by k.key}", "ORDER BY "+kKey, "{w match}", strings.Join(wMatch, " AND "),
			"{whole}", replace.Replace(whole), "{whole inserted}", inserted.Replace(whole), "{is whole}", " AND (SELECT ok FROM _t)",
			"{each once}", "(SELECT count(*) = "+count+" AND count(DISTINCT n) = "+count+" AND bool_and(last "+older+" $1::bigint) FROM _r)")
	}
	return strings.NewReplacer(parts...).Replace(sql)
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func join(parts []string) string { return strings.Join(parts, ", ") }
