package task

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v3"
)

// TestFirstProcessIsMadeWithLittleEffort looks at the first process of a container before it has become the container's program: Go has
// one processor there, and one of its threads, which would wake up often, is woken late. The container's program, and that of an exec,
// are woken as exactly as the process that made them, also if they reset that to their default.
func TestFirstProcessIsMadeWithLittleEffort(t *testing.T) {
	f := newFixture(t)
	want := timerSlack(t, "self")
	if err := f.create(t, "c", false, nil, []string{"/bin/sleep", "1000"}); err != nil {
		t.Fatal(err)
	}
	pid := f.pid(t, "c", "")
	environment, err := os.ReadFile("/proc/" + pid + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Split(string(environment), "\x00"), "GOMAXPROCS=1") {
		t.Errorf("the environment of the first process before it starts: %q", environment)
	}
	threads, err := filepath.Glob("/proc/" + pid + "/task/*")
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for _, thread := range threads {
		if id := filepath.Base(thread); id != pid {
			others = append(others, timerSlack(t, id))
		}
	}
	if got := timerSlack(t, pid); got != want || !slices.Contains(others, "10000000") {
		t.Errorf("before it starts: main thread %s, others %s; want %s, and 10 ms for another one", got, others, want)
	}
	if _, err := f.Start(t.Context(), &api.StartRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	if err := f.exec(t, "c", "e", false, nil, "/bin/sleep", "1000"); err != nil {
		t.Fatal(err)
	}
	for _, exec := range []string{"", "e"} {
		pid := f.pid(t, "c", exec)
		before := timerSlack(t, pid)
		if err := os.WriteFile("/proc/"+pid+"/timerslack_ns", []byte("0"), 0); err != nil { // resets it to the process's default
			t.Fatal(err)
		}
		if got := timerSlack(t, pid); before != want || got != want {
			t.Errorf("process %q: %s, its default %s; want %s", exec, before, got, want)
		}
	}
}

func (f *fixture) pid(t *testing.T, id, execID string) string {
	t.Helper()
	state, err := f.State(t.Context(), &api.StateRequest{ID: id, ExecID: execID})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(state.Pid)
}

func timerSlack(t *testing.T, thread string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + thread + "/timerslack_ns")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
