package migrations

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The messages that name the next step, with SQL that can be copied.

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// cannotInstall says why the files cannot be applied, or nil if nothing is known against it. Asked before the first
// statement that would fail, since PostgreSQL's own message names neither the role nor the way out.
func (s state) cannotInstall() error {
	switch {
	case s.standby:
		return fmt.Errorf("%w: this is a standby, and schema %q is not up to date on it. Connect to the primary", ErrReadOnly, s.schema)
	case !s.schemaExists && !s.mayCreateSchema:
		return fmt.Errorf("%w: schema %q does not exist, and role %q has no CREATE on database %q. As a superuser or the database's owner: "+
			"CREATE SCHEMA %s AUTHORIZATION %s (or GRANT CREATE ON DATABASE %s TO %s). "+
			"Or let another role run migrations.Up, and then %s",
			ErrPrivilege, s.schema, s.role, s.database, quote(s.schema), quote(s.role), quote(s.database), quote(s.role), s.grantLocker())
	case s.schemaExists && !(s.mayCreate && s.mayUse):
		return fmt.Errorf("%w: role %q has no %s on schema %q. As its owner: GRANT USAGE, CREATE ON SCHEMA %s TO %s; "+
			"or let its owner run migrations.Up, and then %s",
			ErrPrivilege, s.role, s.missing(), s.schema, quote(s.schema), quote(s.role), s.grantLocker())
	case s.table && !s.owns:
		return s.notOwner()
	}
	return nil
}

func (s state) missing() string {
	var m []string
	if !s.mayUse {
		m = append(m, "USAGE")
	}
	if !s.mayCreate {
		m = append(m, "CREATE")
	}
	return strings.Join(m, " and no ")
}

// cannotRemove is the same for Down.
func (s state) cannotRemove() error {
	switch {
	case s.standby:
		return fmt.Errorf("%w: this is a standby. Connect to the primary", ErrReadOnly)
	case !s.owns:
		return s.notOwner()
	}
	return nil
}

func (s state) notOwner() error {
	return fmt.Errorf("%w: the tables in schema %q belong to role %q, not to %q: run this as their owner", ErrPrivilege, s.schema, s.owner, s.role)
}

// cannotRead is for a role that has no part in the installation.
func (s state) cannotRead() error {
	return fmt.Errorf("%w: role %q may not read the table migrations in schema %q. As role %q: %s",
		ErrPrivilege, s.role, s.schema, s.owner, s.grantLocker())
}

// plain is what need not be quoted to be the name of a role in a literal.
var plain = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

func (s state) grantLocker() string {
	role := s.role
	if !plain.MatchString(role) {
		role = strings.ReplaceAll(quote(role), "'", "''")
	}
	return fmt.Sprintf("SELECT %s.grant_locker('%s')", quote(s.schema), role)
}

// capSQL is how the cap is changed. Never together with a grant: a failover that loses the one could lose the other.
func (s state) capSQL(from, to time.Duration) string {
	if to > from {
		return fmt.Sprintf("To raise it: the client's RaiseCap(%v), or SELECT %s.raise_cap(%d), then wait until every standby that may be promoted has "+
			"replayed it (pg_stat_replication.replay_lsn); only then use the longer TTLs", to, quote(s.schema), to.Microseconds())
	}
	return fmt.Sprintf("To lower it: use shorter TTLs, wait %v until the longer ones are over, and only then UPDATE %s.guard SET cap_us = %d",
		from, quote(s.schema), to.Microseconds())
}

// recordSQL records files that were run by hand.
func (s state) recordSQL(files []file) string {
	var values []string
	for _, f := range files {
		values = append(values, fmt.Sprintf("(%d, '%s')", f.version, f.sha256()))
	}
	return render("INSERT INTO pglock.migrations (version, sha256) VALUES ", s.schema) + strings.Join(values, ", ")
}

// removal is the way to take an installation away that was made from another text.
func (s state) removal() string {
	down := "run migrations.Down, or the down files, of the version that installed it"
	if s.made { // or else others may live in it
		down += ", or DROP SCHEMA " + quote(s.schema) + " CASCADE (which takes the triggers of protected tables too)"
	}
	return down + "; then Up"
}
