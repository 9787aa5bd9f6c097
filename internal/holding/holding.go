// Package holding lets a context say which locks the transaction that it belongs to holds. Nobody can be granted these before
// the transaction ends, so whoever asks for one with that context would wait for itself.
package holding

import "context"

type key struct{ schema, lock string }

// With returns a context that says so of a lock, with the token of the grant: a lock of that name in another database has another.
func With(ctx context.Context, schema, lock string, token int64) context.Context {
	return context.WithValue(ctx, key{schema, lock}, token)
}

// Token is that of the grant under which a context says so of a lock; 0 if it does not.
func Token(ctx context.Context, schema, lock string) int64 {
	token, _ := ctx.Value(key{schema, lock}).(int64)
	return token
}
