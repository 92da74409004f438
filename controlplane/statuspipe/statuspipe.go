// Package statuspipe tells the supervisor what state each component has reached,
// as one JSON object a line.
package statuspipe

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// State is what a component has come to.
type State string

// The states of a component, in the order in which they are reached. A component
// that ends by itself goes from Starting or Ready to Failed.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Stopped  State = "stopped"
	Failed   State = "failed"
)

// Names of the components as they stand in the lines. ControlPlane is the whole
// process: its Ready is the last line of a start, its Stopped the last of a stop.
const (
	ControlPlane      = "controlplane"
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	RBAC              = "rbac"
)

// Event is one line. ElapsedMs counts from the start of the process.
type Event struct {
	Component string `json:"component"`
	State     State  `json:"state"`
	ElapsedMs int64  `json:"elapsedMs"`
	Error     string `json:"error,omitempty"`
}

// Writer writes events, one a line. It is safe for use by several goroutines.
type Writer struct {
	clock   clock.PassiveClock
	started time.Time

	mu  sync.Mutex // guards out: two events never share a line
	out io.Writer
}

// New returns a Writer to out that counts elapsed time from now. A nil clk is
// the real clock.
func New(out io.Writer, clk clock.PassiveClock) *Writer {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &Writer{clock: clk, started: clk.Now(), out: out}
}

// Report writes that component has reached state; cause is the reason of a
// failure and may be nil. A supervisor that has gone away must not stop the
// cluster, so the caller may ignore the error of a broken pipe.
func (w *Writer) Report(component string, state State, cause error) error {
	event := Event{Component: component, State: state}
	if cause != nil {
		event.Error = cause.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	event.ElapsedMs = w.clock.Since(w.started).Milliseconds()
	line, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("encode event of %q: %w", component, err)
	}
	if _, err := w.out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write event of %q: %w", component, err)
	}
	return nil
}
