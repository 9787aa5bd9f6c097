package fencegrpc

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/deadline"
	"github.com/fencedlock/fencedlock/internal/underfence"
)

// A Guard lets calls through to their handlers whose tokens no later one has overtaken.
type Guard struct {
	// DB is where the fences are: a pool. Each call that runs or waits uses one connection, a stream for as long as it is open, so
	// it bounds how many do. Give it one that the handlers do not use: the calls that wait for a handler could have all of its
	// connections, and the handler would wait for them. Required.
	DB fence.Beginner

	// Fence says which lock protects what a call is about, and under which name its fence is kept (see fence.Raise). method is the
	// full one, "/package.Service/Method". req is nil for a stream, whose messages come later; ctx has the metadata of both.
	// Required. What can be neither, an empty resource for one, is refused as an InvalidResource.
	Fence func(ctx context.Context, method string, req any) (lock, resource string)

	// Open says which methods need no token and have no fence: those that only read, health checks. Nil: none.
	Open func(method string) bool

	// Options are those of fence.Tx: fence.Schema, say.
	Options []fence.Option

	// Logger hears of what the answer does not tell: errors of the database. Nil: nobody.
	Logger *slog.Logger
}

// Unary returns an interceptor that runs the handler of a call whose token is not behind the fence, and holds the fence until the
// handler returns. A later token waits meanwhile, until the call's context ends. What is refused never reaches the handler; the
// package documentation has the codes. An error or a panic of the handler passes through. A Guard without DB or Fence panics
// here, before any call.
//
// The fence is raised and committed before the handler runs: it stays where it is whatever becomes of the handler. To let go of it
// waits for the database for 5 s at most.
func (g Guard) Unary() grpc.UnaryServerInterceptor {
	g.check()
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		err = g.through(ctx, info.FullMethod, req, func() (err error) {
			resp, err = handler(ctx, req)
			return err
		})
		return resp, err
	}
}

// Stream is Unary for streams. The messages that a handler has sent before its fence is found lost are not taken back.
func (g Guard) Stream() grpc.StreamServerInterceptor {
	g.check()
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return g.through(stream.Context(), info.FullMethod, nil, func() error { return handler(srv, stream) })
	}
}

func (g Guard) check() {
	if g.DB == nil || g.Fence == nil {
		panic("fencegrpc: a Guard needs DB and Fence")
	}
}

// through runs next under the fence of a call.
func (g Guard) through(ctx context.Context, method string, req any, next func() error) error {
	if g.Open != nil && g.Open(method) {
		return next()
	}
	values := metadata.ValueFromIncomingContext(ctx, Key)
	if len(values) == 0 {
		return refusal(codes.InvalidArgument, MissingToken, "the call needs a fencing token: send that of the lock as "+Key, nil)
	}
	token, err := parse(values)
	if err != nil {
		return refusal(codes.InvalidArgument, InvalidToken, err.Error(), nil)
	}
	lock, resource := g.Fence(ctx, method, req)
	grant := fence.Grant{Lock: lock, Token: token}
	ran, failed, lost := underfence.Run(ctx, g.DB, grant, resource, g.Options, next)
	switch {
	case !ran:
		return g.refuse(ctx, method, failed)
	case failed != nil:
		return failed
	case ctx.Err() != nil: // nobody waits for the answer
		return status.FromContextError(ctx.Err()).Err()
	case lost != nil:
		g.log(ctx, "fencegrpc: the fence may have been let go of before the handler had ended", method, lost)
		return refusal(codes.Unknown, FenceLost, "the fence may have been let go of before the call had ended: look what has become of it", nil)
	}
	return nil
}

// refuse answers for a call that did not pass.
func (g Guard) refuse(ctx context.Context, method string, err error) error {
	var stale *fence.StaleError
	switch {
	case errors.As(err, &stale):
		message := "a later holder of the lock was here: stop, the lock has moved on"
		facts := map[string]string{tokenKey: format(stale.Token), lastTokenKey: format(stale.LastToken)}
		if stale.Behind {
			message = "the lock service is behind: its owner must raise the floor of its tokens"
			facts[behindKey] = "true"
			g.log(ctx, "fencegrpc: refused", method, err)
		}
		return refusal(codes.Aborted, StaleToken, message, facts)
	case errors.Is(err, fence.ErrOtherLock):
		g.log(ctx, "fencegrpc: refused", method, err)
		return refusal(codes.FailedPrecondition, OtherLock, "another lock protects this", nil)
	case errors.Is(err, fence.ErrNeverGranted):
		return refusal(codes.InvalidArgument, InvalidToken, "the token was never granted", nil)
	case errors.Is(err, fence.ErrNoToken), errors.Is(err, fence.ErrInvalid): // the token was looked at
		return refusal(codes.InvalidArgument, InvalidResource, err.Error(), nil)
	case deadline.Cause(ctx) != nil: // a dial may end before ctx, by its deadline
		return status.FromContextError(ctx.Err()).Err()
	}
	g.log(ctx, "fencegrpc: the fence cannot be asked", method, err)
	return refusal(codes.Unavailable, Unavailable, "the fence cannot be asked", nil)
}

func (g Guard) log(ctx context.Context, message, method string, err error) {
	if g.Logger != nil {
		g.Logger.ErrorContext(ctx, message, "method", method, "error", err)
	}
}
