package supervisor

import (
	"encoding/json"
	"os"
	"sync"
)

// link is the supervisor's end of the socket to a node's process. A process that does not read delays nothing else.
type link struct {
	file *os.File

	mu     sync.Mutex // guards all below
	queue  []any
	closed bool
	wake   *sync.Cond

	running sync.WaitGroup
}

// newLink sends hello and calls handle for each request, from one goroutine, until the other end is closed.
func newLink(file *os.File, hello Hello, handle func(Request)) *link {
	l := &link{file: file, queue: []any{hello}}
	l.wake = sync.NewCond(&l.mu)
	l.running.Go(l.write)
	l.running.Go(func() {
		decoder := json.NewDecoder(l.file)
		for {
			var request Request
			if decoder.Decode(&request) != nil {
				return // the process has ended
			}
			handle(request)
		}
	})
	return l
}

// send queues an event.
func (l *link) send(event Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, event)
	l.wake.Signal()
}

func (l *link) write() {
	encoder := json.NewEncoder(l.file)
	for {
		l.mu.Lock()
		for len(l.queue) == 0 && !l.closed {
			l.wake.Wait()
		}
		if l.closed {
			l.mu.Unlock()
			return
		}
		next := l.queue[0]
		l.queue = l.queue[1:]
		l.mu.Unlock()
		if encoder.Encode(next) != nil {
			return // the process has ended
		}
	}
}

// close ends the link after the process has exited and what it wrote has been handled.
func (l *link) close() error {
	l.mu.Lock()
	l.closed = true
	l.wake.Signal()
	l.mu.Unlock()
	l.running.Wait()
	return l.file.Close()
}
