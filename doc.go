// Package fencedlock is empty; the library is in the packages below it:
//
//   - [github.com/fencedlock/fencedlock/pglock] acquires locks and keeps the leases. Begin there.
//   - [github.com/fencedlock/fencedlock/pglock/once] runs a job once for each instant at which it is due.
//   - [github.com/fencedlock/fencedlock/pglock/migrateguard] runs golang-migrate's migrations from any number of replicas at once.
//   - [github.com/fencedlock/fencedlock/pglock/advisory] makes PostgreSQL's own advisory locks safe to use.
//   - [github.com/fencedlock/fencedlock/fence] makes the database refuse what a former holder writes.
//   - [github.com/fencedlock/fencedlock/fence/fencehttp] does the same for services behind HTTP.
//   - [github.com/fencedlock/fencedlock/migrations] installs the schema that locks and fences need.
//
// Modules of their own are adapters/gocron and adapters/cron, for schedulers, adapters/grpc, which is fencehttp for gRPC, and bench,
// which measures this library beside others.
package fencedlock
