package fencegrpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"

	fencegrpc "github.com/fencedlock/fencedlock/adapters/grpc"
	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
)

// A printer does what it is told, and knows nothing of locks.
type printer struct {
	grpc_testing.UnimplementedTestServiceServer
}

func (printer) UnaryCall(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	fmt.Printf("printed: %s\n", req.GetPayload().GetBody())
	return &grpc_testing.SimpleResponse{}, nil
}

// A device behind gRPC, whose former user comes too late.
func Example() {
	err := withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		// The service.
		guard := fencegrpc.Guard{DB: pool, Fence: func(context.Context, string, any) (lock, resource string) {
			return "printer", "printer-3"
		}}
		server := grpc.NewServer(grpc.ChainUnaryInterceptor(guard.Unary()), grpc.ChainStreamInterceptor(guard.Stream()))
		grpc_testing.RegisterTestServiceServer(server, printer{})
		listener, err := net.Listen("tcp", "localhost:0")
		if err != nil {
			return err
		}
		go server.Serve(listener) //nolint:errcheck // until Stop
		defer server.Stop()

		// Whoever calls it.
		conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithUnaryInterceptor(fencegrpc.UnaryClient), grpc.WithStreamInterceptor(fencegrpc.StreamClient))
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // it has nothing more to say
		print := func(lease *pglock.Lease, text string) error {
			ctx := fence.NewContext(ctx, lease.Grant())
			_, err := grpc_testing.NewTestServiceClient(conn).UnaryCall(ctx, &grpc_testing.SimpleRequest{
				Payload: &grpc_testing.Payload{Body: []byte(text)},
			})
			return err
		}

		locks, err := pglock.New(pool, pglock.Config{})
		if err != nil {
			return err
		}
		defer locks.Close(ctx) //nolint:errcheck // its leases are over
		// The first user does not renew its lease, as one that is suspended would not; the second one waits until it has lapsed.
		first, err := locks.Acquire(ctx, "printer", pglock.NoRenewal(), pglock.TTL(time.Second))
		if err != nil {
			return err
		}
		second, err := locks.Acquire(ctx, "printer")
		if err != nil {
			return err
		}
		if err := print(second, "the second user's page"); err != nil {
			return err
		}
		err = print(first, "the first user's page")
		fmt.Println("the first user is stale:", errors.Is(err, fence.ErrStale))
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// printed: the second user's page
	// the first user is stale: true
}

// withDatabase runs f with a database of its own, which is taken away afterwards.
func withDatabase(f func(context.Context, *pgxpool.Pool) error) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	server, err := pgtemp.Start(ctx, pgtemp.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	outside, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer outside.Close()
	name := fmt.Sprintf("fencegrpc_%d", os.Getpid())
	if _, err := outside.Exec(ctx, `CREATE DATABASE `+name); err != nil {
		return err
	}
	defer func() {
		_, dropping := outside.Exec(ctx, `DROP DATABASE `+name+` WITH (FORCE)`)
		err = errors.Join(err, dropping)
	}()
	pool, err := pgxpool.New(ctx, server.URL(name))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	return f(ctx, pool)
}
