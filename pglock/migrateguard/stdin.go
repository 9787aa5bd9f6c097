package migrateguard

import (
	"encoding/binary"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// noStdin refuses COPY … FROM STDIN: a file has nothing to copy from. The driver passes over the server's request for it, and both would
// wait for each other for ever, with the lock held.
type noStdin struct {
	on     *bool
	server io.Reader
	answer io.Writer
	head   []byte // of the message that has begun
	body   int    // what is left of it
}

// refuseStdin makes it part of connections to be. They refuse from when on is true: hooks may copy what they like.
func refuseStdin(cc *pgx.ConnConfig) (on *bool) {
	on = new(bool)
	build := cc.BuildFrontend
	cc.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return build(&noStdin{on: on, server: r, answer: w}, w)
	}
	return on
}

// Read passes everything on.
func (n *noStdin) Read(p []byte) (int, error) {
	size, err := n.server.Read(p)
	const head = 5 // a letter and a length, which counts itself
	for rest := p[:size]; len(rest) > 0; {
		if n.body > 0 {
			skip := min(n.body, len(rest))
			n.body -= skip
			rest = rest[skip:]
			continue
		}
		more := min(head-len(n.head), len(rest))
		n.head = append(n.head, rest[:more]...)
		rest = rest[more:]
		if len(n.head) < head {
			continue
		}
		n.body = int(binary.BigEndian.Uint32(n.head[1:])) - 4
		if n.head[0] == 'G' && *n.on { // CopyInResponse
			n.refuse()
		}
		n.head = n.head[:0]
	}
	return size, err
}

func (n *noStdin) refuse() {
	fail := pgproto3.CopyFail{Message: "a migration has no standard input: use INSERT"}
	if text, err := fail.Encode(nil); err == nil {
		n.answer.Write(text) //nolint:errcheck // who reads sees that the connection is broken
	}
}
