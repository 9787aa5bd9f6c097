package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Whoever is suspended in the middle of an upload keeps no later holder of the lock waiting, and is refused when it goes on.
func TestHalfAnUploadHoldsNoFence(t *testing.T) {
	t.Parallel()
	err := withService(pgtest.DB(t).Pool(t), true, func(url string) error {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // it was read to its end
		if _, err := fmt.Fprint(conn, "PUT /files/report.txt HTTP/1.1\r\nHost: service\r\nConnection: close\r\n"+
			"Fencing-Token: 7\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"); err != nil {
			return err
		}
		answers := bufio.NewReader(conn)
		if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") { // it is being read
			return fmt.Errorf("the upload begins with %q, %v", line, err)
		}
		if _, err := answers.ReadString('\n'); err != nil { // the empty line
			return err
		}
		if _, err := fmt.Fprint(conn, "half "); err != nil {
			return err
		}

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		resp, _, err := put(fence.NewContext(ctx, fence.Grant{Lock: lockName, Token: 8}), url+"/files/report.txt", "report")
		if err != nil || resp.StatusCode != http.StatusNoContent {
			return fmt.Errorf("a later holder, while half an upload is there: %v, %v", resp, err)
		}

		if _, err := fmt.Fprint(conn, "late."); err != nil {
			return err
		}
		if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "409 Conflict") {
			return fmt.Errorf("the upload that goes on: %q, %v", line, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
