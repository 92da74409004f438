package task

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
)

// TestPausesAtOneInstant pauses a container by several calls: one does it, and none of the others spoils that.
func TestPausesAtOneInstant(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	container, err := f.task("c")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		var calls sync.WaitGroup
		errs, begin := make(chan error, 4), make(chan struct{})
		for range cap(errs) {
			calls.Go(func() {
				<-begin
				_, err := f.Pause(t.Context(), &api.PauseRequest{ID: "c"})
				errs <- err
			})
		}
		container.init.mu.Lock() // the calls meet where they read its state
		close(begin)
		for range 1000 {
			runtime.Gosched()
		}
		container.init.mu.Unlock()
		calls.Wait()
		succeeded := 0
		for range cap(errs) {
			if err := <-errs; err == nil {
				succeeded++
			}
		}
		if status := f.status(t, "c", ""); succeeded != 1 || status != tasktypes.Status_PAUSED {
			t.Fatalf("after pauses at one instant, of which %d succeeded, the container is %s", succeeded, status)
		}
		if _, err := f.Resume(t.Context(), &api.ResumeRequest{ID: "c"}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestExecsThatStartAtThePause has execs join a container while it is paused: none is left half-way into the frozen container, where every
// request that concerns it would wait for the end of the pause.
func TestExecsThatStartAtThePause(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	process, err := json.Marshal(f.specOf("c", []string{"/bin/true"}).Process)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		var starts sync.WaitGroup
		begin := make(chan struct{})
		for n := range 4 {
			execID := fmt.Sprint("e", i, n)
			if _, err := f.Exec(t.Context(), &api.ExecProcessRequest{ID: "c", ExecID: execID, Spec: &anypb.Any{Value: process}}); err != nil {
				t.Fatal(err)
			}
			starts.Go(func() {
				<-begin
				_, _ = f.Start(t.Context(), &api.StartRequest{ID: "c", ExecID: execID})
			})
		}
		starts.Go(func() {
			<-begin
			for range i * 200 { // at different instants of the starts
				runtime.Gosched()
			}
			if _, err := f.Pause(t.Context(), &api.PauseRequest{ID: "c"}); err != nil {
				t.Error(err)
			}
		})
		close(begin)
		done := make(chan struct{})
		go func() {
			defer close(done)
			starts.Wait()
		}()
		select {
		case <-done:
		case <-time.After(waitTimeout):
			t.Error("an exec hangs in the paused container")
		}
		if _, err := f.Resume(t.Context(), &api.ResumeRequest{ID: "c"}); err != nil {
			t.Fatal(err)
		}
		<-done
	}
}

// TestPauseThatIsGivenUp while it waits for an exec that is being started leaves the container as it was.
func TestPauseThatIsGivenUp(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	container, err := f.task("c")
	if err != nil {
		t.Fatal(err)
	}
	if err := container.beginExec(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Pause(ctx, &api.PauseRequest{ID: "c"}); err == nil {
		t.Error("the container was paused while an exec was being started")
	}
	if status := f.status(t, "c", ""); status != tasktypes.Status_RUNNING {
		t.Errorf("after a pause that was given up the container is %s", status)
	}
	container.endExecStart()
	container.running.Done()
	if _, err := f.Pause(t.Context(), &api.PauseRequest{ID: "c"}); err != nil {
		t.Error(err)
	}
}

// TestExecThatStartsWhileItsContainerEnds has execs join a container without its own process IDs while its first process is killed.
func TestExecThatStartsWhileItsContainerEnds(t *testing.T) {
	f := newFixture(t)
	for i := range 15 {
		id := fmt.Sprint("c", i)
		f.run(t, id, nil, []string{"/bin/sleep", "1000"}, withoutPIDNamespace)
		process, err := json.Marshal(f.specOf(id, []string{"/bin/sleep", "1000"}).Process)
		if err != nil {
			t.Fatal(err)
		}
		var execs sync.WaitGroup
		for n := range 4 {
			execID := fmt.Sprint("e", n)
			if _, err := f.Exec(t.Context(), &api.ExecProcessRequest{ID: id, ExecID: execID, Spec: &anypb.Any{Value: process}}); err != nil {
				t.Fatal(err)
			}
			execs.Go(func() { _, _ = f.Start(t.Context(), &api.StartRequest{ID: id, ExecID: execID}) })
		}
		if _, err := f.Kill(t.Context(), &api.KillRequest{ID: id, Signal: uint32(unix.SIGKILL)}); err != nil {
			t.Fatal(err)
		}
		execs.Wait()
		if got := f.wait(t, id, ""); got != 137 {
			t.Errorf("the container ended with %d", got)
		}
		f.waitEvent(t, "/tasks/exit "+id)
		f.deleteAndCheck(t, id)
	}
}
