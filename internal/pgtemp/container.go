package pgtemp

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
	"github.com/testcontainers/testcontainers-go/wait"
)

const defaultImage = "postgres:17-alpine"

// startContainer starts a server in a container. Its end, when this process is killed, is testcontainers' business: a
// companion container (Ryuk) sees to it, unless it was switched off.
func startContainer(ctx context.Context, o Options) (s *Server, err error) {
	log.SetDefault(log.NewNoopLogger()) // an example's output is its own
	image := cmp.Or(os.Getenv("PGLOCK_TEST_IMAGE"), defaultImage)
	password := rand.Text() // the port may be open to other machines
	ctr, err := postgres.Run(ctx, image,
		postgres.WithUsername("postgres"), postgres.WithDatabase("postgres"), postgres.WithPassword(password),
		testcontainers.WithCmdArgs(containerArgs(o)...),
		testcontainers.WithWaitStrategyAndDeadline(time.Minute, wait.ForLog("ready to accept connections")), // or it has ended
	)
	stop := sync.OnceValue(func() error { return testcontainers.TerminateContainer(ctr) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pgtemp: start a container of %s: %w", image, err), stop())
	}
	address, err := ctr.PortEndpoint(ctx, "5432/tcp", "")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pgtemp: find the container: %w", err), stop())
	}
	s = &Server{
		base: url.URL{Scheme: "postgres", User: url.UserPassword("postgres", password), Host: address, RawQuery: "sslmode=disable"},
		how:  "container " + image,
		stop: stop,
	}
	if err := s.awaitSession(ctx); err != nil {
		return nil, errors.Join(err, stop())
	}
	return s, nil
}

// containerArgs are the settings of a local server, less the addresses: a container has its own.
func containerArgs(o Options) []string {
	all := settings(o)
	delete(all, "listen_addresses")
	delete(all, "unix_socket_directories")
	var args []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", name+"="+all[name])
	}
	return args
}

// awaitSession tries until the server lets somebody in. The image's first "ready" is of a server that only sets up the data
// folder, and the engine may open the port before there is a server behind it.
func (s *Server) awaitSession(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.session(ctx, func(conn *pgx.Conn) error { return conn.Ping(ctx) })
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pgtemp: the container's server lets nobody in: %w", err)
		case <-tick.C:
		}
	}
}
