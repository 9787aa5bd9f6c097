package advisory

import "fmt"

// An Option changes one acquisition. A bad one is an error of the acquiring call, before any SQL.
type Option struct {
	apply func(*request)
}

// Shared takes the lock together with others who take it so; whoever takes it without Shared excludes them all.
func Shared() Option { return Option{func(r *request) { r.shared = true }} }

// A request is a lock as a caller wants it.
type request struct {
	key    Key
	shared bool
}

func newRequest(key Key, opts []Option) (request, error) {
	r := request{key: key}
	if err := key.check(); err != nil {
		return r, err
	}
	for _, o := range opts {
		if o.apply == nil {
			return r, fmt.Errorf("%w: a zero Option (%s)", ErrInvalidOption, key.describe())
		}
		o.apply(&r)
	}
	return r, nil
}
