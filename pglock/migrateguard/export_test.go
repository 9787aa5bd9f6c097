package migrateguard

// LockOf is the name of the lease and the key of the session lock for a version table.
func LockOf(schema, table string) (name, key string) {
	s := state{schema: schema, table: table}
	return s.lockName(), s.key().String()
}
