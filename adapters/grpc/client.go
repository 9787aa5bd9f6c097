package fencegrpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/fencedlock/fencedlock/fence"
)

// UnaryClient is a grpc.UnaryClientInterceptor. It puts the token of the grant that a call's context carries (fence.NewContext)
// into its metadata, under [Key]. A call whose context carries none is sent as it is, so that the Guard can refuse it; metadata
// that somebody has set by hand stays only then. A grant that cannot be one, or whose lease was given up, is an error, and nothing is
// sent; so is one of a lock that others hold at the same time, shared or with permits (fence.ErrShared): a live holder would be
// refused after another, and told that it is stale.
//
// When the answer is a Guard's refusal of the token as stale, the lease of the grant is ended. The error then matches
// fence.ErrStale (and fence.ErrBehind, where the lock service has lost its memory), and has a *fence.StaleError, besides the status.
func UnaryClient(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	g, ok := fence.FromContext(ctx)
	if !ok {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	ctx, err := send(ctx, g)
	if err != nil {
		return err
	}
	return told(invoke(ctx, method, req, reply, cc, opts...), g, method)
}

// StreamClient is a grpc.StreamClientInterceptor, which does what [UnaryClient] does. The token is sent once, when the stream
// begins; a refusal comes from RecvMsg, as every status does.
func StreamClient(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	g, ok := fence.FromContext(ctx)
	if !ok {
		return open(ctx, desc, cc, method, opts...)
	}
	ctx, err := send(ctx, g)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &clientStream{stream, g, method}, nil
}

// A clientStream tells its grant of a refusal.
type clientStream struct {
	grpc.ClientStream
	grant  fence.Grant
	method string
}

func (s *clientStream) RecvMsg(m any) error {
	return told(s.ClientStream.RecvMsg(m), s.grant, s.method)
}

// send puts a grant's token into the metadata.
func send(ctx context.Context, g fence.Grant) (context.Context, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	if g.IsShared() || g.Slot > 0 { // the metadata have no room for a slot
		return nil, fmt.Errorf("fencegrpc: lock %q: %w: the other side could not tell a stale token", g.Lock, fence.ErrShared)
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	md = metadata.Join(md) // which may be nil
	md.Set(Key, format(g.Token))
	return metadata.NewOutgoingContext(ctx, md), nil
}

// told tells the grant if the call was refused as stale.
func told(err error, g fence.Grant, method string) error {
	last, behind, ok := staleIn(err, g.Token)
	if !ok {
		return err
	}
	stale := &fence.StaleError{Resource: method, Lock: g.Lock, Token: g.Token, LastToken: last, Behind: behind}
	return fmt.Errorf("%w: %w", g.Stale(stale), err)
}
