// Package holding lets a context say which locks the transaction that it belongs to holds. Nobody can be granted these before
// the transaction ends, so whoever asks for one with that context would wait for itself.
package holding

import "context"

type key struct{ schema, lock string }

// With returns a context that says so of a lock.
func With(ctx context.Context, schema, lock string) context.Context {
	return context.WithValue(ctx, key{schema, lock}, true)
}

// Is tells whether a context says so of a lock.
func Is(ctx context.Context, schema, lock string) bool { return ctx.Value(key{schema, lock}) != nil }
