package sandbox

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func open(t *testing.T) *Dir {
	t.Helper()
	if err := Usable(); err != nil {
		t.Skip(err)
	}
	d, err := New("sandbox-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

func TestProgramsRunInTheFolderAndNotAsRoot(t *testing.T) {
	d := open(t)
	out, err := d.Run(exec.Command("/bin/sh", "-c", "pwd && id -u && touch made"))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fields := strings.Fields(out)
	if fields[0] != d.Path || fields[1] == "0" {
		t.Errorf("ran in %s as user %s, want %s and not 0", fields[0], fields[1], d.Path)
	}
	if info, err := os.Stat(d.Path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v, want mode 0700", info.Mode(), err)
	}
}

func TestOneProgramAtATime(t *testing.T) {
	d := open(t)
	first, err := d.Start(exec.Command("/bin/sleep", "60"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Start(exec.Command("/bin/sleep", "60")); err == nil {
		t.Error("a second program was started beside the first")
	}
	if first.Err() != nil {
		t.Errorf("Err of a running program: %v", first.Err())
	}
	first.Quit()
	if first.Err() == nil {
		t.Error("Err of a program that was killed: nil")
	}
	if _, err := d.Run(exec.Command("/bin/sleep", "0")); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}

func TestCloseEndsTheProgramAndRemovesTheFolder(t *testing.T) {
	d := open(t)
	p, err := d.Start(exec.Command("/bin/sleep", "60"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	<-p.Done()
	if _, err := os.Stat(d.Path); !os.IsNotExist(err) {
		t.Errorf("the folder after Close: %v, want it gone", err)
	}
	if _, err := d.Start(exec.Command("/bin/sleep", "60")); err == nil {
		t.Error("Start after Close: no error")
	}
}

func TestAProgramThatDoesNotEndIsKilled(t *testing.T) {
	patience = 10 * time.Millisecond
	t.Cleanup(func() { patience = 15 * time.Second })
	d := open(t)
	deaf := exec.Command("/bin/sh", "-c", "trap '' QUIT && echo deaf && while :; do sleep 0.1; done")
	said, err := deaf.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Start(deaf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := said.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.Quit()
	if p.Err() == nil {
		t.Error("Err of a program that was killed: nil")
	}
}

// The watchdog alone does it too, when nobody is left to call Close. (That it notices is tested in pgtemp, with a process
// that is killed.)
func TestWatchdogStopsTheProgramAtTheEndOfItsInput(t *testing.T) {
	d := open(t)
	p, err := d.Start(exec.Command("/bin/sleep", "60"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.leash.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Error("the program still runs 10 s later")
	}
	if err := d.dog.Wait(); err != nil {
		t.Errorf("the watchdog: %v", err)
	}
	if _, err := os.Stat(d.Path); !os.IsNotExist(err) {
		t.Errorf("the folder: %v, want it gone", err)
	}
	d.closed = true // nothing is left for Close
}

// Where the temp dir is closed to the unprivileged user, the folder is elsewhere.
func TestTempDirOfRootsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root runs programs as somebody else")
	}
	closed := t.TempDir() + "/closed"
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", closed)
	d := open(t)
	if out, err := d.Run(exec.Command("/bin/sh", "-c", "touch made")); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
