package migrations

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// DefaultSchema is where the library lives unless [Schema] says otherwise.
const DefaultSchema = "pglock"

const (
	minCap = 100 * time.Millisecond
	maxCap = 24 * time.Hour
)

// An Option changes what [Up], [Down] and [Version] work on. A bad one is [ErrInvalid], before any SQL is sent.
type Option struct{ set func(*config) }

// config holds what the options said; cap is 0 and single false where they said nothing.
type config struct {
	schema string
	cap    time.Duration
	single bool
	errs   []error
}

// Schema puts the library into a schema of another name. Any name will do that PostgreSQL takes, public and names with
// capitals, spaces and quotes included; clients must be given the same one. Two schemas in one database are two lock
// services that know nothing of each other.
func Schema(name string) Option {
	return Option{func(c *config) {
		c.schema = name
		if err := checkSchema(name); err != nil {
			c.errs = append(c.errs, err)
		}
	}}
}

// Cap sets the longest TTL that a lease may have, 100 ms to 24 h; 30 s without it. It is also how long new grants wait
// after a restart or a failover, so choose the longest TTL in use and not more. It is set when the schema is installed:
// a later [Up] with another value returns [ErrSettings]; the client's RaiseCap raises it.
func Cap(d time.Duration) Option {
	return Option{func(c *config) {
		c.cap = d
		if d < minCap || d > maxCap || d%time.Microsecond != 0 {
			c.errs = append(c.errs, fmt.Errorf("cap %v: want whole microseconds from %v to %v", d, minCap, maxCap))
		}
	}}
}

// SingleNode declares that the server has no standby and is never restored from a snapshot, so that nothing that was
// committed can be lost. A restart then costs less waiting: new grants wait until the cap has passed since the server started,
// or since it was shut down in an orderly way. Wrongly declared, a failover can grant a lock twice. It is set when the schema is
// installed: a later [Up] that declares it anew returns [ErrSettings]; the client's DeclareSingleNode changes it.
func SingleNode() Option {
	return Option{func(c *config) { c.single = true }}
}

// resolve collects the options, and every complaint about them.
func resolve(opts []Option) (config, error) {
	c := config{schema: DefaultSchema}
	for _, o := range opts {
		if o.set != nil { // the zero Option says nothing
			o.set(&c)
		}
	}
	if err := errors.Join(c.errs...); err != nil {
		return c, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return c, nil
}

// checkSchema refuses a name that PostgreSQL would refuse, cut short or reserve, or that would end a function's body.
func checkSchema(name string) error {
	switch {
	case name == "":
		return errors.New("the schema name is empty")
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("schema name %q: want valid UTF-8 without NUL", name)
	case len(name) > 63:
		return fmt.Errorf("schema name %q has %d bytes, want at most 63", name, len(name))
	case strings.HasPrefix(name, "pg_"):
		return fmt.Errorf("schema name %q: PostgreSQL keeps names that start with pg_ for itself", name)
	case strings.Contains(name, "$$"):
		return fmt.Errorf("schema name %q: $$ would end the body of a function", name)
	}
	return nil
}
