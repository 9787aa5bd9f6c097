// Webhook shows three ways to have an effect once, and what each of them is for.
//
// A bank tells a shop what happens, by HTTP, and tells it again until it is answered: the same event comes several times, to several
// replicas, at the same time and later. A payment is to be credited once, and to be confirmed by one mail; and the status of
// an invoice is to be the bank's latest.
//
//   - The credit is a write to the shop's own database: a row with the event's ID as its key, in the same transaction, is enough. No
//     lock is needed. (once.Runner.Tx would do the same, and has a record of it.)
//   - The mail is not in the database, and sending takes a while: once.Runner.Run lets one replica send it, tells the others who is at it, and
//     keeps on record whether it was sent. Without it each delivery sends one (-once=false).
//   - The status is asked of the bank and then written. Here no key helps: two different events are both to be handled. A replica that was
//     suspended between the question and the write would overwrite what another has written meanwhile. The fence refuses it (and
//     -fence=false does not).
//
// So a key, or once, is against the same event twice; a fence is against a writer that comes late.
//
//	go run ./examples/webhook
//	go run ./examples/webhook -once=false   # several mails; the exit status is 1
//	go run ./examples/webhook -fence=false  # the old status stays; the exit status is 1
//
// It needs PostgreSQL's server binaries or a Docker engine, takes about 6 s, and leaves nothing behind.
//
// Read shop.go first: it is what a program of yours would look like. main.go is the story.
package main
