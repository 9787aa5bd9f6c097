// Package fencedlock is empty; the library is in the packages below it:
//
//   - [github.com/fencedlock/fencedlock/pglock] acquires locks and keeps the leases. Begin there.
//   - [github.com/fencedlock/fencedlock/pglock/once] runs a job once for each instant at which it is due.
//   - [github.com/fencedlock/fencedlock/fence] makes the database refuse what a former holder writes.
//   - [github.com/fencedlock/fencedlock/migrations] installs the schema that both need.
package fencedlock
