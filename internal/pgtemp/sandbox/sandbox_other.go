//go:build !unix

package sandbox

import (
	"errors"
	"fmt"
	"os/exec"
)

// The watchdog is a shell script, and an owner a Unix user: New refuses before either is used.
const watchdog = ""

type owner struct {
	name     string
	uid, gid int
}

func unprivileged() (*owner, error) {
	return nil, fmt.Errorf("sandbox: servers of one's own are started on Linux and macOS only: %w", errors.ErrUnsupported)
}

func parent(*owner) string { return "" }

func (d *Dir) detach(*exec.Cmd) {}

func (p *Proc) wake() {}
