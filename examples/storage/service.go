package main

import (
	"bytes"
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
		body, err := io.ReadAll(r.Body)
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
		mux.Handle("PUT /files/{name}", whole(guard.Handler(files)))
	} else {
		mux.Handle("PUT /files/{name}", whole(files))
	}
	return mux
}

// whole reads an upload to its end before anybody looks at it: half of one must not replace what was there, nor hold the fence
// while its sender is suspended.
func whole(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}
