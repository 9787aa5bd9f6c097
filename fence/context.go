package fence

import "context"

type contextKey struct{}

// NewContext returns a context that carries a grant to where its writes are made, over calls that know nothing of locks: to
// an http.Client with package fencehttp's Transport, say.
func NewContext(ctx context.Context, g Grant) context.Context {
	return context.WithValue(ctx, contextKey{}, g)
}

// FromContext returns the grant that a context carries, and whether it carries one.
func FromContext(ctx context.Context) (Grant, bool) {
	g, ok := ctx.Value(contextKey{}).(Grant)
	return g, ok
}
