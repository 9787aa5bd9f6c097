//go:build !unix

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "invoices: it freezes a process with SIGSTOP, which this system does not have: run it on Linux or macOS")
	os.Exit(1)
}
