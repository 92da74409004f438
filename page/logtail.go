package page

import (
	"bufio"
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/wakeup"
)

// tailLines is how many lines of each container a page shows; maxLine bounds one of them. tailPause is the least time between two
// streams of one run of a container.
const (
	tailLines = 40
	maxLine   = 4 << 10
	tailPause = 10 * time.Second
)

// logTail follows the logs of a Pod's containers for one page.
type logTail struct {
	hub     *hub
	view    view
	changed wakeup.Signal
	group   sync.WaitGroup

	mu    sync.Mutex // guards all below
	tails []*containerTail
}

// containerTail has the last lines of one run of a container.
type containerTail struct {
	Name  string
	id    string
	Lines []string
	Why   string // why there are no lines
	// again is when the log may be read again, because its stream has ended; zero while it goes on. stale is set until the first line of
	// another stream replaces the lines.
	again time.Time
	stale bool
}

func newLogTail(h *hub, v view, changed wakeup.Signal) *logTail {
	return &logTail{hub: h, view: v, changed: changed}
}

// wait joins the following, which the end of update's context ends.
func (t *logTail) wait() { t.group.Wait() }

// update follows the containers that have started since the last call until ctx ends, and puts the lines into the document.
func (t *logTail) update(ctx context.Context, page *document) {
	last := len(page.Blocks) - 1
	if t.view.kind != explain.KindPod || last < 0 || page.Blocks[last].ID != "log" {
		return
	}
	pod, err := t.hub.source.Client.CoreV1().Pods(t.view.namespace).Get(ctx, t.view.what, metav1.GetOptions{})
	if err != nil {
		return // it has gone meanwhile
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.hub.source.Clock.Now()
	for status := range podutil.Statuses(&pod.Status) {
		if status.ContainerID == "" {
			continue
		}
		tail := t.tailOf(status.Name, status.ContainerID)
		// The kubelet or the API server may have ended the stream, and not the container.
		broken := tail != nil && status.State.Running != nil && !tail.again.IsZero()
		switch {
		case tail == nil || broken && !now.Before(tail.again):
			t.start(ctx, pod, *status, tail)
		case broken:
			page.again = cmp.Or(min(page.again, tailPause), tailPause)
		}
	}
	var shown []containerTail
	for _, tail := range t.tails {
		shown = append(shown, containerTail{Name: tail.Name, Lines: append([]string(nil), tail.Lines...), Why: tail.Why})
	}
	page.Blocks[last].HTML = fragmentHTML("log", shown)
}

// tailOf returns what is followed of this run of the container, nil if nothing. The caller holds mu.
func (t *logTail) tailOf(name, id string) *containerTail {
	for _, tail := range t.tails {
		if tail.Name == name && tail.id == id {
			return tail
		}
	}
	return nil
}

// start follows a container, in the place of an earlier run of it, or of an earlier stream of this run. The caller holds mu.
func (t *logTail) start(ctx context.Context, pod *corev1.Pod, status corev1.ContainerStatus, earlier *containerTail) {
	tail := &containerTail{Name: status.Name, id: status.ContainerID}
	if earlier != nil {
		tail.Lines, tail.Why, tail.stale = earlier.Lines, earlier.Why, true
	}
	replaced := false
	for i := range t.tails {
		if t.tails[i].Name == status.Name {
			t.tails[i], replaced = tail, true
		}
	}
	if !replaced {
		t.tails = append(t.tails, tail)
	}
	request := t.hub.source.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: status.Name, Follow: status.State.Running != nil, TailLines: ptr.To[int64](tailLines),
	})
	t.group.Go(contain.Guard("page.log", pod.Namespace+"/"+pod.Name, func() {
		defer t.ended(tail)
		stream, err := request.Stream(ctx)
		t.opened(tail, err)
		if err != nil {
			return
		}
		defer stream.Close()
		reader := bufio.NewReaderSize(stream, maxLine)
		for {
			line, err := reader.ReadSlice('\n') // a longer line comes in parts
			if len(line) > 0 {
				t.add(tail, strings.TrimRight(string(line), "\r\n"))
			}
			if err != nil && err != bufio.ErrBufferFull { //nolint:errorlint // bufio returns it as it is
				return
			}
		}
	}))
}

// add adds a line, and drops the oldest.
func (t *logTail) add(tail *containerTail, line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tail.stale {
		tail.Lines, tail.stale = nil, false
	}
	tail.Lines = append(tail.Lines, printable(line))
	if extra := len(tail.Lines) - tailLines; extra > 0 {
		tail.Lines = append([]string(nil), tail.Lines[extra:]...)
	}
	t.changed.Notify()
}

// opened notes whether the stream has begun.
func (t *logTail) opened(tail *containerTail, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tail.Why = ""
	if err != nil {
		tail.Why = err.Error()
	}
	t.changed.Notify()
}

// ended notes that the stream has ended.
func (t *logTail) ended(tail *containerTail) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tail.again = t.hub.source.Clock.Now().Add(tailPause)
	t.changed.Notify()
}

// printable replaces control characters, such as the colours of a terminal.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return '·'
		}
		return r
	}, line)
}
