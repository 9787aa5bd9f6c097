package fencegrpc_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	fencegrpc "github.com/fencedlock/fencedlock/adapters/grpc"
	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// patience bounds waits, and ends only tests that fail anyway.
const patience = 30 * time.Second

func TestMain(m *testing.M) { pgtest.Main(m) }

// A shelf is a service whose effects are what it was told, in order: "shelf/text" puts the text on the shelf.
type shelf struct {
	grpc_testing.UnimplementedTestServiceServer
	guard  fencegrpc.Guard
	client grpc_testing.TestServiceClient

	handle  func(ctx context.Context, text string) error // before the effect, if any
	outcome chan error                                   // what the guard has answered, on the server's side

	mu   sync.Mutex
	kept []string
	log  strings.Builder
}

// newShelf serves a shelf behind a guard. The lock is "billing", unless the metadata name another.
func newShelf(t *testing.T, db fence.Beginner, handle func(ctx context.Context, text string) error) *shelf {
	t.Helper()
	s := &shelf{handle: handle, outcome: make(chan error, 100)}
	s.guard = fencegrpc.Guard{
		DB: db,
		Fence: func(ctx context.Context, method string, req any) (lock, resource string) {
			lock = "billing"
			if other := metadata.ValueFromIncomingContext(ctx, "lock"); len(other) > 0 {
				lock = other[0]
			}
			if put, ok := req.(*grpc_testing.SimpleRequest); ok {
				resource, _, _ = strings.Cut(string(put.GetPayload().GetBody()), "/")
				return lock, resource
			}
			if method != grpc_testing.TestService_FullDuplexCall_FullMethodName || req != nil {
				t.Errorf("asked for the fence of %s, %v", method, req)
			}
			return lock, strings.Join(metadata.ValueFromIncomingContext(ctx, "shelf"), "")
		},
		Open:   func(method string) bool { return method == grpc_testing.TestService_EmptyCall_FullMethodName },
		Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
	}
	s.client = serve(t, s,
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
			defer s.judge(&err)
			return next(ctx, req)
		}, s.guard.Unary()),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer s.judge(&err)
			return next(srv, stream)
		}, s.guard.Stream()))
	return s
}

// judge keeps what came of a call, and makes an answer of a panic.
func (s *shelf) judge(err *error) {
	if r := recover(); r != nil {
		*err = status.Errorf(codes.Internal, "panic: %v", r)
	}
	s.outcome <- *err
}

// serve starts a server, and returns a client of it.
func serve(t *testing.T, srv grpc_testing.TestServiceServer, opts ...grpc.ServerOption) grpc_testing.TestServiceClient {
	t.Helper()
	server := grpc.NewServer(append(opts, grpc.WaitForHandlers(true))...)
	grpc_testing.RegisterTestServiceServer(server, srv)
	listener := bufconn.Listen(1 << 16)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("passthrough:shelf",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(fencegrpc.UnaryClient), grpc.WithStreamInterceptor(fencegrpc.StreamClient))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		serving.Wait()
	})
	return grpc_testing.NewTestServiceClient(conn)
}

func (s *shelf) EmptyCall(context.Context, *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	return &grpc_testing.Empty{}, nil
}

func (s *shelf) UnaryCall(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	_, text, _ := strings.Cut(string(req.GetPayload().GetBody()), "/")
	return &grpc_testing.SimpleResponse{}, s.keep(ctx, text)
}

// FullDuplexCall keeps what each message says, and confirms it.
func (s *shelf) FullDuplexCall(stream grpc_testing.TestService_FullDuplexCallServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil // the client has said all
		}
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: req.GetPayload()}); err != nil {
			return err
		}
		if err := s.keep(stream.Context(), string(req.GetPayload().GetBody())); err != nil {
			return err
		}
	}
}

func (s *shelf) keep(ctx context.Context, text string) error {
	if s.handle != nil {
		if err := s.handle(ctx, text); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, text)
	return nil
}

func (s *shelf) content() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.kept, " ")
}

// put puts a text on the shelf "a", or on the one that stands before it, with tokens in the metadata as they are.
func (s *shelf) put(ctx context.Context, text string, tokens ...string) error {
	if !strings.Contains(text, "/") {
		text = "a/" + text
	}
	_, err := s.client.UnaryCall(with(ctx, tokens...), &grpc_testing.SimpleRequest{Payload: body(text)})
	return err
}

// pour puts texts on the shelf "a" over one stream, and returns how many were confirmed, and what the stream ended with.
func (s *shelf) pour(ctx context.Context, token string, texts ...string) (confirmed int, _ error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "shelf", "a")
	if token != "" {
		ctx = with(ctx, token)
	}
	stream, err := s.client.FullDuplexCall(ctx)
	if err != nil {
		return 0, err
	}
	for _, text := range texts {
		if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{Payload: body(text)}); err != nil {
			break // Recv says why
		}
	}
	if err := stream.CloseSend(); err != nil {
		return 0, err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return confirmed, err
		}
		confirmed++
	}
}

func body(text string) *grpc_testing.Payload { return &grpc_testing.Payload{Body: []byte(text)} }

func with(ctx context.Context, tokens ...string) context.Context {
	for _, token := range tokens {
		ctx = metadata.AppendToOutgoingContext(ctx, fencegrpc.Key, token)
	}
	return ctx
}

// told is what the status of an error says: its code, and the reason and the tokens of its ErrorInfo.
func told(err error) string {
	s := status.Convert(err)
	text := s.Code().String()
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == fencegrpc.Domain {
			text += " " + info.GetReason()
			if len(info.GetMetadata()) > 0 {
				text += fmt.Sprintf(" %s<%s", info.GetMetadata()["token"], info.GetMetadata()["lastToken"])
			}
		}
	}
	return text
}

func want(t *testing.T, what string, err error, want string) {
	t.Helper()
	if got := told(err); got != want {
		t.Errorf("%s: %s (%v), want %s", what, got, err, want)
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// happens waits for an event.
func happens[T any](t *testing.T, what string, event <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-event:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

// gate is a handler that says when it has been reached, and goes on when it is told to.
type gate struct{ in, on chan struct{} }

func newGate() gate { return gate{make(chan struct{}), make(chan struct{})} }

func (g gate) pass(text string) {
	if strings.HasPrefix(text, "gate") {
		g.in <- struct{}{}
		<-g.on
	}
}
