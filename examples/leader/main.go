package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fencedlock/fencedlock/pglock"
)

func main() {
	if os.Getenv(nodeVariable) != "" {
		os.Exit(beNode()) // this process is one of those that the director has started
	}
	elect := flag.Bool("elect", true, "let the nodes elect their leader; false shows what happens if they do not")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := play(ctx, *elect)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

// A director tells the story. Each of its scenes waits for what happens, and never for "a while".
type director struct {
	*timeline
	db    *database
	elect bool
	words chan word // of all nodes

	nodes  []*node
	leader *node
}

// play is the story from beginning to end.
func play(ctx context.Context, elect bool) (err error) {
	d := &director{timeline: newTimeline(os.Stdout), elect: elect, words: make(chan word, 1000)}
	d.say("database", "is starting")
	d.db, err = newDatabase(ctx)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err) // a ^C says more than what followed from it
	}
	defer func() { err = errors.Join(err, d.db.close()) }()
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the story has not come to its end within a minute"))
	defer cancel()
	defer func() {
		for _, n := range d.nodes {
			n.end()
		}
	}()
	d.say("database", "is ready: %s", d.db.server.How())

	scenes := []func(context.Context) error{d.threeNodes, d.theLeaderResigns, d.theLeaderIsKilled, d.allEnd, d.theLedgerIsRead}
	if !elect {
		scenes = []func(context.Context) error{d.threeNodes, d.anotherLeads, d.allEnd, d.theLedgerIsRead}
	}
	for _, scene := range scenes {
		if err := scene(ctx); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	d.end("One leads at a time. Who leads next has a later token, and the fence refuses whatever an earlier leader still writes.")
	return nil
}

func (d *director) threeNodes(ctx context.Context) error {
	for _, name := range []string{"node A", "node B", "node C"} {
		n, err := d.startNode(ctx, name)
		if err != nil {
			return err
		}
		d.nodes = append(d.nodes, n)
	}
	return d.anotherLeads(ctx)
}

// anotherLeads waits for a leader who has begun its work. Without an election, that is one who was not the last.
func (d *director) anotherLeads(ctx context.Context) error {
	for {
		select {
		case w := <-d.words:
			if strings.HasPrefix(w.text, "has written three") && (d.elect || w.node != d.leader) {
				d.leader = w.node
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *director) theLeaderResigns(ctx context.Context) error {
	d.say("director", "asks %s to resign", d.leader.name)
	if err := d.leader.tell("resign"); err != nil {
		return err
	}
	return d.anotherLeads(ctx)
}

func (d *director) theLeaderIsKilled(ctx context.Context) error {
	d.say("director", "kills %s (kill -9)", d.leader.name)
	if err := d.leader.kill(); err != nil {
		return err
	}
	if err := d.whoLeads(ctx); err != nil {
		return err
	}
	return d.anotherLeads(ctx)
}

// whoLeads asks the database, as everybody can.
func (d *director) whoLeads(ctx context.Context) error {
	locks, err := pglock.New(d.db.pool, pglock.Config{Owner: "director"})
	if err != nil {
		return err
	}
	defer closeLocks(locks)
	s, err := locks.Inspect(ctx, electionName)
	if err == nil {
		d.say("database", "%s leads until its lease runs out, in %v", s.Owner, s.Remaining.Round(time.Millisecond))
	}
	return err
}

func (d *director) allEnd(context.Context) error {
	d.say("director", "ends the others")
	for _, n := range d.nodes {
		if n.cmd.ProcessState == nil {
			if err := n.finish(); err != nil {
				return err
			}
		}
	}
	return nil
}

// theLedgerIsRead tells the story's end from what the database says, and not from what the nodes say.
func (d *director) theLedgerIsRead(ctx context.Context) error {
	chapters, err := d.db.read(ctx)
	if err != nil {
		return err
	}
	var last int64
	for _, c := range chapters {
		d.say("database", "%d entries by %s, token %d", c.entries, c.writer, c.token)
		if c.token <= last {
			return fmt.Errorf("two have led at once: the entries of %s (token %d) come after those of token %d", c.writer, c.token, last)
		}
		last = c.token
	}
	if len(chapters) < 3 {
		return fmt.Errorf("%d terms in the ledger, not three or more", len(chapters))
	}
	return nil
}
