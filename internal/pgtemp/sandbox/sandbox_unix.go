//go:build unix

package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// watchdog reads process ids; at the end of its input it stops the last one and removes the folder $1. SIGQUIT is
// followed by SIGCONT, in case the program was frozen. The wait is bounded because a dead program whose new parent does
// not collect it (process 1 of many containers) looks alive for ever; rm is tried again because a program that is only
// just ending may still write a file.
const watchdog = `
trap '' HUP INT TERM
pid=0
while read -r line; do pid=$line; done
if [ "$pid" -gt 0 ]; then
	kill -QUIT "$pid"
	kill -CONT "$pid"
	n=0
	while [ $n -lt 70 ] && kill -0 "$pid"; do sleep 0.1; n=$((n + 1)); done
	kill -KILL "$pid"
fi
n=0
until rm -rf "$1" || [ $n -eq 50 ]; do sleep 0.1; n=$((n + 1)); done
`

// An owner is the unprivileged user who runs the programs.
type owner struct {
	name     string
	uid, gid int
}

// unprivileged returns who runs the programs when we are root, and nil when we are not.
func unprivileged() (*owner, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if errUID == nil && errGID == nil && uid > 0 {
			return &owner{name: name, uid: uid, gid: gid}, nil
		}
	}
	return nil, errors.New("sandbox: PostgreSQL refuses to run as root, and there is no user postgres or nobody: run as an ordinary user")
}

// parent returns the folder to make folders in: the temp dir, unless it is closed to the user who has to get there.
func parent(who *owner) string {
	if who != nil {
		for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
			if passable(dir) {
				return dir
			}
		}
	}
	return os.TempDir()
}

// passable reports whether anybody may pass through dir and the folders above it.
func passable(dir string) bool {
	dir, err := filepath.EvalSymlinks(dir)
	for ; err == nil && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		info, statErr := os.Stat(dir)
		if statErr != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
	}
	return err == nil
}

// detach gives cmd a session of its own and the unprivileged user.
func (d *Dir) detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if d.owner != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(d.owner.uid), Gid: uint32(d.owner.gid), Groups: []uint32{}}
	}
}

// wake lets a frozen program see its signals.
func (p *Proc) wake() { _ = p.Signal(syscall.SIGCONT) }
