package advisory

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// An Entry is a session that holds an advisory lock, or waits for one.
type Entry struct {
	Key         Key
	Shared      bool
	Waits       bool          // for the lock; else it holds it
	PID         int32         // of its backend; 0: a prepared transaction holds the lock
	Application string        // its application_name
	Client      string        // its address; "" if it has none (a Unix socket), or this role may not see it
	Age         time.Duration // of the session, since the server keeps no time for a lock; of the wait, for one that blocks; 0: not to be seen
	BlockedBy   []int32       // whom one that waits waits for, by pid; only List looks
}

// String says which lock it is, and who holds it or waits, and for whom.
func (e Entry) String() string {
	s := e.Key.describe()
	if !e.Waits {
		return s + " is held by " + e.session()
	}
	s += " is awaited by " + e.session()
	if len(e.BlockedBy) > 0 {
		s += " behind pid " + strings.Trim(strings.ReplaceAll(fmt.Sprint(e.BlockedBy), " ", ", "), "[]")
	}
	return s
}

func (e Entry) session() string {
	s := fmt.Sprintf("pid %d (%q", e.PID, e.Application)
	if e.Client != "" {
		s += " from " + e.Client
	}
	if e.Age > 0 {
		s += fmt.Sprintf(", session %v old", roundAge(e.Age))
	}
	if e.Shared {
		s += ", shared"
	}
	return s + ")"
}

// A row is one statement's only answer: pgx's and database/sql's alike.
type row interface{ Scan(dest ...any) error }

// A queryer sends one statement that answers one row.
type queryer func(ctx context.Context, sql string, args ...any) row

// entries runs a statement of entriesSQL's kind.
func entries(ctx context.Context, query queryer, sql string, args ...any) ([]Entry, error) {
	var text string
	if err := query(ctx, sql, args...).Scan(&text); err != nil {
		return nil, err
	}
	var found []struct {
		Classid, Objid int64
		Objsubid       int16
		PID            int32
		Shared, Waits  bool
		Application    string
		Client         string
		Age            float64
	}
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return nil, err
	}
	list := make([]Entry, len(found))
	for i, f := range found {
		list[i] = Entry{
			Key: fromPgLocks(f.Classid, f.Objid, f.Objsubid), Shared: f.Shared, Waits: f.Waits,
			PID: f.PID, Application: f.Application, Client: f.Client, Age: time.Duration(f.Age * float64(time.Second)),
		}
	}
	return list, nil
}

// heldBy is the error for a lock that was not to be had, with who holds it.
func heldBy(ctx context.Context, query queryer, key Key) (*HeldError, error) {
	classid, objid, objsubid := key.PgLocks()
	holders, err := entries(ctx, query, holdersSQL, int64(classid), int64(objid), int64(objsubid))
	for i := range holders {
		holders[i].Key = key // with its name
	}
	return &HeldError{Key: key, Holders: holders}, err
}
