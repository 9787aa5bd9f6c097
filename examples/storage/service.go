package main

import (
	"io"
	"net/http"
	"os"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/fence/fencehttp"
)

const lockName = "reports"

// newService serves the files of a folder, and writes them for whoever holds the lock.
func newService(db fence.Beginner, folder *os.Root, guarded bool) http.Handler {
	files := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Read it all first: half of an upload must not replace what was there.
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := folder.WriteFile(r.PathValue("name"), body, 0o644); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	guard := fencehttp.Guard{
		DB: db,
		// One lock protects the whole folder, so one fence does.
		Fence: func(*http.Request) (lock, resource string) { return lockName, "the folder of reports" },
	}
	mux := http.NewServeMux()
	mux.Handle("GET /files/", http.StripPrefix("/files/", http.FileServerFS(folder.FS())))
	if guarded {
		mux.Handle("PUT /files/{name}", guard.Handler(files))
	} else {
		mux.Handle("PUT /files/{name}", files)
	}
	return mux
}
