// Package failover has tests only. They lose what a PostgreSQL can lose in a crash, a failover or a restore, under the eyes of
// clients that trust their leases, and look whether a lock was granted twice or a token used again. `go test -run Failover ./...`
// runs them all; PGLOCK_LONG=1 repeats each event, and adds the runs under load.
//
// Each event happens to two installations in one database. One is as it should be. The other has no guard: its clients show
// what the event would do, so that an event that does no harm cannot pass for a guard that works.
package failover
