package oom

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A container's exit is published when its watch has been stopped: an OOM kill that is reported later is not seen as its cause.
func TestStopWaitsForAReportThatTheReaderHasBegun(t *testing.T) {
	cgroup := t.TempDir()
	file := filepath.Join(cgroup, "memory.events")
	if err := os.WriteFile(file, []byte("oom 0\noom_kill 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	begun, finish := make(chan string, 2), make(chan struct{})
	watcher := New(func(id string) {
		begun <- id
		<-finish
	})
	stop, err := watcher.Add(t.Context(), "killed", map[string]string{"": cgroup})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.inotify.Close()
	change, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer change.Close()
	if _, err := change.WriteString("oom 1\noom_kill 1\n"); err != nil { // in place: the file is never without its values
		t.Fatal(err)
	}
	<-begun

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	select {
	case <-stopped:
		t.Error("the watch is stopped while the report of a kill is still to come")
	case <-time.After(100 * time.Millisecond):
	}
	close(finish)
	<-stopped
	if len(begun) > 0 {
		t.Error("one kill is reported twice")
	}
}
