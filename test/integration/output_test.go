//go:build integration

package integration

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"
)

// output collects what a process prints and notifies waiters for a text in it.
type output struct {
	mu   sync.Mutex
	cond *sync.Cond
	text bytes.Buffer
}

func newOutput() *output {
	o := &output{}
	o.cond = sync.NewCond(&o.mu)
	return o
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cond.Broadcast()
	return o.text.Write(data)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// waitFor returns once the text was printed; it fails the test if the process ends before, or after waitTimeout.
func (o *output) waitFor(t testing.TB, text string, ended <-chan error) {
	t.Helper()
	o.waitForTimes(t, text, 1, ended)
}

// waitForTimes is waitFor for a text that is printed several times.
func (o *output) waitForTimes(t testing.TB, text string, times int, ended <-chan error) {
	t.Helper()
	found := make(chan struct{})
	stop := context.AfterFunc(t.Context(), o.cond.Broadcast)
	defer stop()
	go func() {
		defer close(found)
		o.mu.Lock()
		defer o.mu.Unlock()
		for strings.Count(o.text.String(), text) < times && t.Context().Err() == nil {
			o.cond.Wait()
		}
	}()
	select {
	case <-found:
	case err := <-ended:
		t.Fatalf("berth up ended (%v) before it printed %q; it printed:\n%s", err, text, o)
	case <-time.After(waitTimeout):
		t.Fatalf("berth up did not print %q; it printed:\n%s", text, o)
	}
}
