// Package supervised is the node's process's side of package supervisor: it has programs run by the supervisor, which outlives
// this process, and shows progress by it.
package supervised

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/up/supervisor"
)

// Link is the connection to the supervisor. It is safe for concurrent use.
type Link struct {
	// Hello is what the supervisor said first.
	Hello supervisor.Hello
	file  *os.File
	input *json.Decoder

	mu      sync.Mutex // guards all below
	output  *json.Encoder
	adopted map[string]bool          // programs of an earlier process that run
	exits   map[string]chan error    // of the programs that this process runs
	early   map[string]error         // why adopted programs exited before this process ran them
	watched map[string]ProgramEvents // of the programs that the supervisor keeps
}

// ProgramEvents are called for a program that the supervisor keeps, in order and from one goroutine.
type ProgramEvents struct {
	// OnLine gets each line that it writes; old is set for those from before this process was started.
	OnLine func(line string, old bool)
	// OnExit gets the error of each exit.
	OnExit func(err error)
}

// Connect uses the descriptor that the supervisor has passed, and reads its Hello.
func Connect() (*Link, error) {
	if _, err := unix.FcntlInt(supervisor.LinkFD, unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, errors.New("only the supervisor of berth up starts this command")
	}
	return Open(os.NewFile(supervisor.LinkFD, "supervisor"))
}

// Open returns the connection over a socket, and reads the supervisor's Hello.
func Open(file *os.File) (*Link, error) {
	l := &Link{
		file: file, input: json.NewDecoder(file), output: json.NewEncoder(file),
		adopted: make(map[string]bool), exits: make(map[string]chan error), early: make(map[string]error),
		watched: make(map[string]ProgramEvents),
	}
	if err := l.input.Decode(&l.Hello); err != nil {
		return nil, fmt.Errorf("read from the supervisor: %w", err)
	}
	for name := range l.Hello.Running {
		l.adopted[name] = true
	}
	return l, nil
}

// Watch registers what to do when a program that the supervisor keeps writes a line or exits. Call it before Serve.
func (l *Link) Watch(name string, events ProgramEvents) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watched[name] = events
}

// Serve receives events until the supervisor ends. stop is called when it wants the node to stop.
func (l *Link) Serve(stop func()) {
	l.mu.Lock()
	watched := l.watched
	l.mu.Unlock()
	for name, events := range watched {
		for _, line := range l.Hello.Running[name] {
			events.OnLine(line, l.Hello.Restarts > 0)
		}
	}
	for {
		var event supervisor.Event
		if err := l.input.Decode(&event); err != nil {
			return // the kernel ends this process, too
		}
		if event.Stop {
			stop()
		} else {
			_ = contain.Do("supervised.event", event.Program, func() error { l.on(event); return nil })
		}
	}
}

// on handles an event of a program.
func (l *Link) on(event supervisor.Event) {
	var err error
	if event.Error != "" {
		err = errors.New(event.Error)
	}
	l.mu.Lock()
	events, watched := l.watched[event.Program]
	exited := l.exits[event.Program]
	if event.Line == nil {
		if !watched && exited == nil && l.adopted[event.Program] && err != nil {
			l.early[event.Program] = err // Run reports it
		}
		delete(l.exits, event.Program)
		delete(l.adopted, event.Program)
	}
	l.mu.Unlock()
	switch {
	case watched && event.Line != nil:
		events.OnLine(*event.Line, false)
	case watched:
		events.OnExit(err)
	case event.Line == nil && exited != nil:
		_ = l.request(supervisor.Request{Kind: supervisor.KindSeen, Name: event.Program})
		exited <- err
	}
}

// Adopted reports whether the program of that name has been running since before this process was started: Run waits for
// its end then, and starts nothing.
func (l *Link) Adopted(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.adopted[name]
}

// Run has the supervisor run a program, and waits until it exits. When ctx is done the supervisor stops it. It runs on when this
// process dies. If an adopted program has failed since this process was started, the first Run only returns why.
func (l *Link) Run(ctx context.Context, program supervisor.Program) error {
	exited := make(chan error, 1)
	if err := l.takeEarly(program.Name); err != nil {
		_ = l.request(supervisor.Request{Kind: supervisor.KindSeen, Name: program.Name})
		return err
	}
	if err := l.requestStart(&program, exited); err != nil {
		return fmt.Errorf("start %s: %w", program.Name, err)
	}
	select {
	case err := <-exited:
		return err
	case <-ctx.Done():
	}
	if err := l.request(supervisor.Request{Kind: supervisor.KindStop, Name: program.Name}); err != nil {
		return fmt.Errorf("stop %s: %w", program.Name, err)
	}
	<-exited
	return nil
}

// takeEarly returns once why an adopted program exited before this process ran it, nil if it did not.
func (l *Link) takeEarly(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.early[name]
	delete(l.early, name)
	return err
}

// requestStart requests the start of a program, unless it runs, and has its end sent to exited.
func (l *Link) requestStart(program *supervisor.Program, exited chan error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exits[program.Name] = exited
	if l.adopted[program.Name] {
		return nil
	}
	return l.output.Encode(supervisor.Request{Kind: supervisor.KindStart, Program: program})
}

func (l *Link) request(request supervisor.Request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.output.Encode(request)
}

// Started says that the node can run Pods.
func (l *Link) Started() { _ = l.request(supervisor.Request{Kind: supervisor.KindStarted}) }

// Up says that what the user has started is ready; text describes it.
func (l *Link) Up(text string) {
	_ = l.request(supervisor.Request{Kind: supervisor.KindUp, Text: text})
}

// Done says that this process has ended its task, with an error if it failed. The cluster stops then. If keepPods is set, its Pods
// run on, and nothing of them is cleaned up.
func (l *Link) Done(err error, keepPods bool) error {
	request := supervisor.Request{Kind: supervisor.KindDone, Keep: keepPods}
	if err != nil {
		request.Text = err.Error()
	}
	return l.request(request)
}

// Starting implements supervisor.Display. Without a supervisor there is no terminal to write to, here and below.
func (l *Link) Starting(name string) {
	_ = l.request(supervisor.Request{Kind: supervisor.KindStarting, Name: name})
}

// Ready implements supervisor.Display.
func (l *Link) Ready(name, detail string) {
	_ = l.request(supervisor.Request{Kind: supervisor.KindReady, Name: name, Text: detail})
}

// Failed implements supervisor.Display.
func (l *Link) Failed(name string, err error) {
	_ = l.request(supervisor.Request{Kind: supervisor.KindFailed, Name: name, Text: err.Error()})
}

// Printf implements supervisor.Display.
func (l *Link) Printf(format string, args ...any) {
	_ = l.request(supervisor.Request{Kind: supervisor.KindPrint, Text: fmt.Sprintf(format, args...)})
}
