package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// childVariable makes this program a child that does what its standard input says, one request a line.
const childVariable = "FENCEDLOCK_BENCH_CHILD"

type request struct {
	ID        int
	Verb      string
	Contender contender
	Name      string
	Job       contest
	Limit     time.Duration
}

type response struct {
	ID    int
	At    instant
	Turns turns
	Err   string
}

// child serves requests if this process is one of those, until its parent is gone.
func child() bool {
	if os.Getenv(childVariable) == "" {
		return false
	}
	l := &local{hands: &hands{}}
	out := json.NewEncoder(os.Stdout)
	var mu sync.Mutex
	for in := json.NewDecoder(os.Stdin); ; {
		var r request
		if err := in.Decode(&r); err != nil {
			return true
		}
		go func() {
			a := serve(l, r)
			mu.Lock()
			defer mu.Unlock()
			out.Encode(a) //nolint:errcheck // the parent is gone, and so are we
		}()
	}
}

func serve(l *local, r request) response {
	ctx, cancel := context.WithTimeout(context.Background(), r.Limit)
	defer cancel()
	a := response{ID: r.ID}
	var err error
	switch r.Verb {
	case "open":
		err = l.Open(ctx, r.Contender)
	case "acquire":
		a.At, err = l.Acquire(ctx, r.Contender, r.Name)
	case "release":
		a.At, err = l.Release(ctx, r.Contender, r.Name)
	case "contend":
		a.Turns, err = l.Contend(ctx, r.Contender, r.Job)
	default:
		err = fmt.Errorf("no verb %q", r.Verb)
	}
	if err != nil {
		a.Err = oneLine(err)
	}
	return a
}

// A process is a caller in a process of its own: this program once more.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	mu      sync.Mutex
	last    int
	pending map[int]chan response // nil once the process has ended
	ended   sync.WaitGroup
}

func startProcess() (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self), pending: map[int]chan response{}}
	p.cmd.Env = append(os.Environ(), childVariable+"=1")
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.ended.Go(func() { p.read(out) })
	return p, nil
}

// read is the goroutine that hands out the answers; stop joins it.
func (p *process) read(out io.Reader) {
	for in := json.NewDecoder(bufio.NewReader(out)); ; {
		var a response
		err := in.Decode(&a)
		p.mu.Lock()
		if err != nil {
			for _, c := range p.pending {
				close(c)
			}
			p.pending = nil
			p.mu.Unlock()
			return
		}
		p.pending[a.ID] <- a
		delete(p.pending, a.ID)
		p.mu.Unlock()
	}
}

// stop ends the process at once, as a crash would.
func (p *process) stop() {
	p.cmd.Process.Kill() //nolint:errcheck // it has ended already
	p.ended.Wait()
	p.cmd.Wait() //nolint:errcheck // it was killed
}

func (p *process) ask(ctx context.Context, r request) (response, error) {
	r.Limit = time.Minute
	if end, ok := ctx.Deadline(); ok {
		r.Limit = time.Until(end)
	}
	answer := make(chan response, 1)
	p.mu.Lock()
	p.last++
	r.ID = p.last
	line, err := json.Marshal(r)
	if p.pending == nil {
		err = errEnded
	}
	if err == nil {
		p.pending[r.ID] = answer
		_, err = p.in.Write(append(line, '\n'))
	}
	p.mu.Unlock()
	if err != nil {
		return response{}, err
	}
	select {
	case a, ok := <-answer:
		switch {
		case !ok:
			return a, errEnded
		case a.Err != "":
			return a, errors.New(a.Err)
		}
		return a, nil
	case <-ctx.Done():
		return response{}, context.Cause(ctx)
	}
}

var errEnded = errors.New("the process has ended")

func (p *process) Open(ctx context.Context, c contender) error {
	_, err := p.ask(ctx, request{Verb: "open", Contender: c})
	return err
}

func (p *process) Acquire(ctx context.Context, c contender, name string) (instant, error) {
	a, err := p.ask(ctx, request{Verb: "acquire", Contender: c, Name: name})
	return a.At, err
}

func (p *process) Release(ctx context.Context, c contender, name string) (instant, error) {
	a, err := p.ask(ctx, request{Verb: "release", Contender: c, Name: name})
	return a.At, err
}

func (p *process) Contend(ctx context.Context, c contender, job contest) (turns, error) {
	a, err := p.ask(ctx, request{Verb: "contend", Contender: c, Job: job})
	return a.Turns, err
}
