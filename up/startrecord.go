package up

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/up/supervisor"
)

// startRecord passes on to a Display, and records how each component starts, as stages of the cluster. It is safe for concurrent use.
type startRecord struct {
	supervisor.Display
	recorder *timeline.Recorder
	cluster  timeline.Ref

	mu       sync.Mutex // guards starting
	starting map[string]*timeline.Span
}

func newStartRecord(display supervisor.Display, recorder *timeline.Recorder, layout Layout) *startRecord {
	return &startRecord{
		Display: display, recorder: recorder, starting: make(map[string]*timeline.Span),
		cluster: timeline.Ref{Kind: timeline.KindCluster, Name: layout.ID, UID: types.UID("cluster-" + layout.ID)},
	}
}

// Starting implements supervisor.Display.
func (r *startRecord) Starting(name string) {
	r.Display.Starting(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starting[name] == nil {
		r.starting[name] = r.recorder.Begin(r.cluster, "up", timeline.StageStarting, name)
	}
}

// Ready implements supervisor.Display.
func (r *startRecord) Ready(name, detail string) {
	r.Display.Ready(name, detail)
	r.end(name, nil)
}

// Failed implements supervisor.Display.
func (r *startRecord) Failed(name string, err error) {
	r.Display.Failed(name, err)
	r.end(name, err)
}

func (r *startRecord) end(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting[name].End(err) // a nil Span does nothing
	delete(r.starting, name)
}
