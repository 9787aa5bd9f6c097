// Package history records what many clients of a lock did, and finds every violation of the lock's guarantees in the
// record.
//
// A [History] has two sources that know nothing of each other, and the checker joins them:
//
//   - the database's order: a trigger on the lease table appends every change of a lease row to a log, in the same
//     transaction ([InstallLog], [ReadLog]). It says who was granted what, in which order, from when and until when.
//   - the clients: each process has a [Recorder] that keeps what its clients were told, for how long they trusted it,
//     why they lost it, and which of their fenced writes were accepted.
//
// Two kinds of instants occur and are never mixed without being asked for. An [Instant] is the database's clock. A
// time.Duration is one process's monotonic clock, counted from the start of its recorder: windows of two processes are
// compared only under [Options.OneMachine].
//
// Slots: two grants of one name exclude each other when they have the same slot, or when one of them has slot 0, which
// stands for the whole name (the mutex, or the writer of a shared lock). Permits of a semaphore and readers have slots
// from 1 and may overlap. How many slots a name has is logged with its slot 0.
//
// The package has no dependencies, so that every other one can be tested with it.
package history
