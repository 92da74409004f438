package server

import (
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Defaults of Config.MaxStreams and Config.MaxPodStreams.
const (
	DefaultMaxStreams    = 1000
	DefaultMaxPodStreams = 100
)

// streamLimit bounds how many streams to containers there are at once. It is safe for concurrent use.
type streamLimit struct {
	all, perPod int

	mu    sync.Mutex
	n     int
	byPod map[types.UID]int
}

func newStreamLimit(all, perPod int) *streamLimit {
	return &streamLimit{all: all, perPod: perPod, byPod: map[types.UID]int{}}
}

// acquire counts one more stream to the Pod until release is called. If there are too many, it responds to the request.
func (l *streamLimit) acquire(w http.ResponseWriter, pod types.UID) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.byPod[pod] >= l.perPod:
		http.Error(w, fmt.Sprintf("%d exec, attach and port-forward streams to this Pod are open already: close some of them",
			l.byPod[pod]), http.StatusTooManyRequests)
		return nil, false
	case l.n >= l.all:
		http.Error(w, fmt.Sprintf("%d exec, attach and port-forward streams to Pods of this node are open already: close some of them",
			l.n), http.StatusTooManyRequests)
		return nil, false
	}
	l.n++
	l.byPod[pod]++
	return func() { l.release(pod) }, true
}

func (l *streamLimit) release(pod types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n--
	if l.byPod[pod]--; l.byPod[pod] == 0 {
		delete(l.byPod, pod)
	}
}
