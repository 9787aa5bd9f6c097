package fencegrpc_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	fencegrpc "github.com/fencedlock/fencedlock/adapters/grpc"
	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// calls are the two kinds of call, under the grant that ctx carries. A hand-made token is replaced.
var calls = map[string]func(s *shelf, ctx context.Context, text string) error{
	"a call": func(s *shelf, ctx context.Context, text string) error { return s.put(ctx, text, "1") },
	"a stream": func(s *shelf, ctx context.Context, text string) error {
		_, err := s.pour(ctx, "1", text)
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	},
}

// From the lease to the effect and back: the refusal ends the lease.
func TestARefusedCallEndsItsLease(t *testing.T) {
	t.Parallel()
	for what, call := range calls {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			s := newShelf(t, d.Pool(t), nil)
			locks, err := pglock.Open(d.URL, pglock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { locks.Close(bounded(t)) }) //nolint:errcheck // its leases are over
			take := func() *pglock.Lease {
				l, err := locks.TryAcquire(bounded(t), "billing", pglock.NoRenewal(), pglock.TTL(20*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			old := take()
			d.Age(t, "billing", time.Minute)
			next := take()
			if err := call(s, fence.NewContext(bounded(t), next.Grant()), "next"); err != nil {
				t.Errorf("the next holder: %v", err)
			}
			if err := old.Err(); err != nil {
				t.Fatalf("it knows already: %v", err)
			}
			err = call(s, fence.NewContext(bounded(t), old.Grant()), "old")
			var stale *fence.StaleError
			if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || stale.Lock != "billing" || stale.Token != old.Token() || stale.LastToken != next.Token() {
				t.Errorf("the old holder: %v", err)
			}
			if status.Code(err) != codes.Aborted {
				t.Errorf("the old holder: code %v", status.Code(err))
			}
			var lost *pglock.LostError
			if !errors.As(old.Err(), &lost) || lost.Cause != pglock.Taken {
				t.Errorf("the old lease: %v", old.Err())
			}
			if err := next.Release(bounded(t)); err != nil {
				t.Fatal(err)
			}
			if err := call(s, fence.NewContext(bounded(t), next.Grant()), "released"); !errors.Is(err, pglock.ErrReleased) {
				t.Errorf("a released lease: %v", err)
			}
			if got := s.content(); got != "next" {
				t.Errorf("kept: %s", got)
			}
		})
	}
}

func TestACallWithoutAGrantIsSentAsItIs(t *testing.T) {
	t.Parallel()
	s := newShelf(t, pgtest.DB(t).Pool(t), nil)
	want(t, "without anything", s.put(bounded(t), "-"), "InvalidArgument MISSING_TOKEN")
	want(t, "with a token by hand", s.put(bounded(t), "by-hand", "7"), "OK")
	_, err := s.pour(bounded(t), "", "-")
	want(t, "a stream without anything", err, "InvalidArgument MISSING_TOKEN")
}

// A pretender is a service that answers what it likes, and keeps what it was sent.
type pretender struct {
	grpc_testing.UnimplementedTestServiceServer
	answer error
	sent   chan metadata.MD
}

func (p *pretender) UnaryCall(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	p.sent <- md
	return &grpc_testing.SimpleResponse{}, p.answer
}

func TestNothingIsSentUnderWhatIsNoGrant(t *testing.T) {
	t.Parallel()
	p := &pretender{sent: make(chan metadata.MD, 10)}
	c := serve(t, p)
	released := errors.New("given up")
	good := fence.Grant{Lock: "billing", Token: 7}
	for what, x := range map[string]struct {
		grant fence.Grant
		want  error
	}{
		"no token": {fence.Grant{Lock: "billing"}, fence.ErrNoToken},
		"shared":   {good.AsShared(), fence.ErrShared},
		"a permit": {fence.Grant{Lock: "billing", Slot: 1, Token: 7}, fence.ErrShared},
		"given up": {good.While(func() error { return released }), released},
	} {
		ctx := fence.NewContext(bounded(t), x.grant)
		if _, err := c.UnaryCall(ctx, &grpc_testing.SimpleRequest{}); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := c.FullDuplexCall(ctx); !errors.Is(err, x.want) {
			t.Errorf("%s: a stream: %v", what, err)
		}
	}
	if len(p.sent) > 0 {
		t.Errorf("sent: %v", <-p.sent)
	}
	ctx := metadata.AppendToOutgoingContext(fence.NewContext(bounded(t), good), "other", "stays")
	if _, err := c.UnaryCall(ctx, &grpc_testing.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	if md := <-p.sent; len(md.Get(fencegrpc.Key)) != 1 || md.Get(fencegrpc.Key)[0] != "7" || len(md.Get("other")) != 1 {
		t.Errorf("sent: %v", md)
	}
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(fencegrpc.Key)) > 0 {
		t.Error("the caller's metadata was changed")
	}
}

// A lock service that has lost its memory is told from a holder that is late, which cannot mend it.
func TestALockServiceThatIsBehindIsToldApart(t *testing.T) {
	t.Parallel()
	for what, call := range calls {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			s := newShelf(t, d.Pool(t), nil)
			var told error
			g := fence.Grant{Lock: "billing", Token: 7}.OnStale(func(err error) { told = err })
			d.Exec(t, `SELECT pglock.fence_raise('a', 'billing', 0, 8)`)
			if err := call(s, fence.NewContext(bounded(t), g), "-"); !errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrBehind) {
				t.Errorf("a late holder: %v, want ErrStale alone", err)
			}
			d.Exec(t, `INSERT INTO pglock.leases (name, slot, token) VALUES ('billing', 0, 7); SELECT setval('pglock.fencing_token', 7)`)
			err := call(s, fence.NewContext(bounded(t), g), "-")
			if !errors.Is(err, fence.ErrStale) || !errors.Is(err, fence.ErrBehind) || !errors.Is(told, fence.ErrBehind) {
				t.Errorf("%v, and the lease was told %v; want ErrBehind and ErrStale", err, told)
			}
		})
	}
}

// An error of the service's own says nothing about the lock, nor does a refusal that it has met itself and passes on.
func TestAnotherRefusalEndsNoLease(t *testing.T) {
	t.Parallel()
	p := &pretender{sent: make(chan metadata.MD, 10)}
	c := serve(t, p)
	for what, info := range map[string]*errdetails.ErrorInfo{
		"none":               nil,
		"of another domain":  {Domain: "x", Reason: fencegrpc.StaleToken, Metadata: map[string]string{"token": "7", "lastToken": "8"}},
		"for another reason": {Domain: fencegrpc.Domain, Reason: fencegrpc.OtherLock, Metadata: map[string]string{"token": "7", "lastToken": "8"}},
		"of another token":   {Domain: fencegrpc.Domain, Reason: fencegrpc.StaleToken, Metadata: map[string]string{"token": "6", "lastToken": "8"}},
		"of no later token":  {Domain: fencegrpc.Domain, Reason: fencegrpc.StaleToken, Metadata: map[string]string{"token": "7", "lastToken": "7"}},
		"of no last token":   {Domain: fencegrpc.Domain, Reason: fencegrpc.StaleToken, Metadata: map[string]string{"token": "7", "lastToken": "x"}},
		"real":               {Domain: fencegrpc.Domain, Reason: fencegrpc.StaleToken, Metadata: map[string]string{"token": "7", "lastToken": "8"}},
	} {
		s := status.New(codes.Aborted, what)
		if info != nil {
			var err error
			if s, err = s.WithDetails(info); err != nil {
				t.Fatal(err)
			}
		}
		p.answer = s.Err()
		told := 0
		g := fence.Grant{Lock: "billing", Token: 7}.OnStale(func(error) { told++ })
		_, err := c.UnaryCall(fence.NewContext(bounded(t), g), &grpc_testing.SimpleRequest{})
		if status.Code(err) != codes.Aborted || errors.Is(err, fence.ErrStale) != (what == "real") || (told == 1) != (what == "real") {
			t.Errorf("%s: %v; the lease was told %d times", what, err, told)
		}
	}
}
