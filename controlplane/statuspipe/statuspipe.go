// Package statuspipe writes the state that each component reaches as one JSON
// object per line, for the process that has started this one.
package statuspipe

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// State is a state of a component.
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
	Encryption        = "encryption of Secrets"
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

// New returns a Writer to out that counts elapsed time from now. A nil source is
// the real clock.
func New(out io.Writer, source clock.PassiveClock) *Writer {
	if source == nil {
		source = clock.RealClock{}
	}
	return &Writer{clock: source, started: source.Now(), out: out}
}

// Report writes that component has reached state; cause is the reason of a
// failure and may be nil. The cluster goes on when its reader has ended, so the
// caller may ignore the error of a broken pipe.
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
