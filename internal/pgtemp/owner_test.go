package pgtemp_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

const ownerVariable = "PGTEMP_TEST_OWNER"

// beOwner is another process: it starts a server, says where it is, and waits to be killed.
func beOwner() {
	s, err := pgtemp.Start(context.Background(), pgtemp.Options{Fresh: true})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	folder, err := ask[string](context.Background(), s, `SELECT current_setting('data_directory')`)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.URL("postgres"))
	fmt.Println(folder)
	select {}
}

// The owner is killed in a way that lets none of its code run. The server and its folder go all the same.
func TestServerDiesWithItsOwner(t *testing.T) {
	t.Parallel()
	usable(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	owner := exec.Command(self)
	owner.Env = append(os.Environ(), ownerVariable+"=1")
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var url, folder string
	if lines.Scan() {
		url = lines.Text()
	}
	if lines.Scan() {
		folder = lines.Text()
	}
	if _, err := os.Stat(folder); err != nil {
		t.Fatalf("the owner said %q, %q: %v", url, folder, err)
	}

	_ = owner.Process.Kill()
	_ = owner.Wait()

	eventually(t, "the folder to be removed", func() bool {
		_, err := os.Stat(folder)
		return os.IsNotExist(err)
	})
	if err := dial(t.Context(), url); err == nil {
		t.Error("the server still accepts connections after its owner was killed")
	}
}

// eventually polls a condition that belongs to another process, which can send us no event.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 15 s for %s", what)
		}
	}
}
