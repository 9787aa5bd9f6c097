package history

import (
	"sync"
	"time"
)

// A Recorder keeps what the clients of one process did. It is safe for concurrent use.
type Recorder struct {
	process string
	started time.Time

	mu      sync.Mutex
	history History
}

// NewRecorder starts the clock of a process. The name tells the processes of one history apart.
func NewRecorder(process string) *Recorder {
	started := time.Now()
	r := &Recorder{process: process, started: started}
	r.history.Processes = []Process{{Name: process, Started: started}}
	return r
}

// Told begins the trust window of a grant. Call it when the client has been told, not before: the window must not be
// longer than what the client believed.
func (r *Recorder) Told(g Grant) *Holding {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The clock is read under the lock, so that the order of the records is the order of their instants.
	trust := Trust{Grant: g, Process: r.process, From: time.Since(r.started), Open: true}
	r.history.Trusts = append(r.history.Trusts, trust)
	return &Holding{recorder: r, place: len(r.history.Trusts) - 1}
}

// HandingOver records that the holder of one acquisition is about to give its live lease to another one. Call it before
// the attempt is sent: the grant counts as handed over even if its reply is lost.
func (r *Recorder) HandingOver(h HandOver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.HandOvers = append(r.history.HandOvers, h)
}

// Accepted records a fenced write that was committed; serial is its place in the database's order.
func (r *Recorder) Accepted(g Grant, resource string, serial int64) {
	r.write(Write{Grant: g, Resource: resource, Accepted: true, Serial: serial})
}

// Refused records a fenced write that the fence turned away.
func (r *Recorder) Refused(g Grant, resource string) {
	r.write(Write{Grant: g, Resource: resource})
}

func (r *Recorder) write(w Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Writes = append(r.history.Writes, w)
}

// History returns a copy of what was recorded until now. Windows that have not ended are open in it.
func (r *Recorder) History() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.history.Clone()
	// The wall clock alone is compared with other processes, and a file keeps no monotonic reading.
	h.Processes[0].Started = h.Processes[0].Started.Round(0)
	return h
}

// A Holding is a trust window that is being recorded. Its first ending counts.
type Holding struct {
	recorder *Recorder
	place    int
}

// Released ends the window because its holder gives the lease back. Call it right before Release, which ends the
// lease's context: afterwards somebody else may hold it before this call is made.
func (h *Holding) Released() { h.end("") }

// Lost ends the window because the lease's context ended for that cause. It is meant for context.AfterFunc.
func (h *Holding) Lost(cause string) {
	if cause == "" {
		cause = "unknown" // an empty cause would read as a release
	}
	h.end(cause)
}

// Lapsed ends the window at an instant that the client knew beforehand, by a lapse, though this is called later: a process
// that did not get to run did not use its trust either.
func (h *Holding) Lapsed(at time.Time, cause string) {
	h.endAt(min(at.Sub(h.recorder.started), time.Since(h.recorder.started)), cause)
}

func (h *Holding) end(cause string) {
	h.endAt(time.Since(h.recorder.started), cause) // before the lock: waiting for it must not stretch the window
}

func (h *Holding) endAt(at time.Duration, cause string) {
	r := h.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	trust := &r.history.Trusts[h.place]
	if !trust.Open {
		return
	}
	trust.Open, trust.Cause = false, cause
	trust.Until = max(trust.From, at)
}
