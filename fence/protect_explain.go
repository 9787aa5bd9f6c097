package fence

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotStated comes from [Explain] when a transaction wrote to a protected table and had stated no grant: see [Protect] and
// [State]. Nothing was written.
var ErrNotStated = errors.New("the transaction has stated no grant")

// Explain adds to what a write to a protected table came back with (see [Protect]) the errors of this package, for errors.Is
// and errors.As: [ErrNotStated] (SQLSTATE FL001), [ErrStale] as a [*StaleError] (FL002), also [ErrBehind] (FL003),
// [ErrOtherLock] as an [*OtherLockError] (FL004), [ErrNeverGranted] (FL005). The text stays as it is, and so does every
// other error, nil too.
//
// It takes what pgx has returned, or database/sql over pgx, wrapped or not; of what another driver has returned it knows the
// SQLSTATE, if that has such a method, and neither the table nor the tokens. [Tx] and [HeldTx] do it with what their function
// returns, and tell the grant. Elsewhere
//
//	return g.Stale(fence.Explain(err))
//
// does both. A [*pgconn.PgError] has the table in its fields, and the facts as JSON in its Detail.
func Explain(err error) error {
	if r, ok := refusalIn(err); ok {
		return r
	}
	return err
}

// explained is [Explain] for what a function of the caller's has returned. A stale one reaches the grant once.
func (g Grant) explained(err error) error {
	if r, ok := refusalIn(err); ok {
		return g.Stale(r)
	}
	return err
}

// A refusal is an error of PostgreSQL's that ours is found in as well.
type refusal struct {
	error       // as it came
	ours  error // what it means
}

func (r *refusal) Unwrap() []error { return []error{r.error, r.ours} }

// refusalIn finds a refusal that nobody has explained yet.
func refusalIn(err error) (error, bool) {
	var known *refusal
	if errors.As(err, &known) {
		return nil, false
	}
	pg := &pgconn.PgError{Code: codeOf(err)} // of another driver's there is no more
	errors.As(err, &pg)
	var f struct { // see fence_refuse
		Table, Key, Lock string
		Slot             int
		Token            Token
		LastToken        Token  `json:"last_token"`
		OtherLock        string `json:"other_lock"`
		OtherSlot        int    `json:"other_slot"`
	}
	var ours error
	_ = json.Unmarshal([]byte(pg.Detail), &f) // a proxy may have cut it: the code says enough
	resource := f.Table
	if f.Key != "" {
		resource += " " + f.Key
	}
	switch pg.Code {
	case "FL001":
		ours = ErrNotStated
	case "FL002":
		ours = &StaleError{Resource: resource, Lock: f.Lock, Token: f.Token, LastToken: f.LastToken}
	case "FL003": // whose hint names the schema
		ours = &StaleError{Resource: resource, Lock: f.Lock, Token: f.Token, LastToken: f.LastToken, Behind: true, cure: pg.Hint}
	case "FL004":
		ours = &OtherLockError{Resource: resource, Lock: f.Lock, Slot: f.Slot, OtherLock: f.OtherLock, OtherSlot: f.OtherSlot}
	case "FL005":
		ours = fmt.Errorf("fence: %s: %w", resource, neverGranted(Grant{Lock: f.Lock, Slot: f.Slot, Token: f.Token}))
	default:
		return nil, false
	}
	return &refusal{err, ours}, true
}
