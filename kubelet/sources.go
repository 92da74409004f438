package kubelet

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/mirror"
)

var _ config.Handler = (*Kubelet)(nil)

// sources are where the node's Pods come from beside the API server.
type sources struct {
	pods   *config.Static
	static []starter

	mu sync.Mutex
	// silent are the sources that have not delivered yet.
	silent map[string]bool
}

type starter interface {
	Start(ctx context.Context) error
}

// openSources makes the sources of Pods.
func (k *Kubelet) openSources() (err error) {
	cfg, d, s := &k.cfg, &k.deps, &k.sources
	logger := d.Logger.With("room", "static pods")
	s.silent = map[string]bool{}
	if s.pods, err = config.NewStatic(config.StaticDeps{
		Handle: k.HandlePod, Logger: logger, Clock: d.Clock, OnConflict: func(pod *corev1.Pod, message string) {
			d.Recorder.Event(pod, corev1.EventTypeWarning, "FailedValidation", message)
		},
	}); err != nil {
		return err
	}
	if cfg.Static.Path != "" && !k.face.fed {
		file, err := config.NewFile(config.FileDeps{
			Set: k.replace(config.SourceFile), Logger: logger, Clock: d.Clock,
		}, config.FileConfig{
			Path: cfg.Static.Path, NodeName: cfg.NodeName, Period: cfg.Static.FilePeriod,
		})
		if err != nil {
			return err
		}
		s.static = append(s.static, file)
		s.silent[config.SourceFile] = true
	}
	if cfg.Static.URL != "" && !k.face.fed {
		url, err := config.NewHTTP(config.HTTPDeps{
			Set: k.replace(config.SourceHTTP), Logger: logger, Clock: d.Clock,
		}, config.HTTPConfig{
			URL: cfg.Static.URL, Header: cfg.Static.Header, NodeName: cfg.NodeName, Period: cfg.Static.HTTPPeriod,
		})
		if err != nil {
			return err
		}
		s.static = append(s.static, url)
		s.silent[config.SourceHTTP] = true
	}
	if d.standalone {
		k.services.listed() // there are none to wait for
		return nil
	}
	s.silent[config.SourceAPI] = !k.face.fed
	k.source, err = config.NewAPI(config.APIDeps{
		Client: d.Client, Handler: apiHandler{k}, Clock: d.Clock, Logger: d.Logger,
	}, config.APIConfig{NodeName: cfg.NodeName})
	return err
}

// reflect makes what shows static Pods in the API server, and keeps all statuses where there is none.
func (k *Kubelet) reflect() (err error) {
	d := &k.deps
	deps := mirror.Deps{OnStatus: k.readers.changed, Logger: d.Logger.With("room", "mirror pods"), Clock: d.Clock}
	if !d.standalone {
		deps.Client, deps.Writer, deps.Node, deps.Registered = d.Client, k.statuses, k.node.Node, k.node.Registered()
	}
	k.mirrors, err = mirror.New(deps)
	return err
}

// replace takes all Pods of a source of static Pods.
func (k *Kubelet) replace(source string) func([]*corev1.Pod) {
	return func(pods []*corev1.Pod) {
		k.sources.pods.Replace(source, pods)
		k.spoken(source)
	}
}

// spoken notes that a source has delivered all its Pods once.
func (k *Kubelet) spoken(source string) {
	s := &k.sources
	s.mu.Lock()
	was := s.silent[source]
	delete(s.silent, source)
	all := was && len(s.silent) == 0
	s.mu.Unlock()
	if all {
		k.SourcesReady()
	}
}

// apiHandler is the node agent as the API source sees it: one source of several.
type apiHandler struct{ *Kubelet }

// SourceReady implements config.Handler.
func (h apiHandler) SourcesReady() { h.spoken(config.SourceAPI) }

// HandlePod takes a change of one Pod. Sources call it; who has a source of their own may call it too, with Pods that
// config.Decode made.
func (k *Kubelet) HandlePod(change config.Change) {
	k.face.looped(k.deps.Clock.Now())
	switch {
	case podutil.IsMirror(change.Pod):
		k.mirrors.HandleMirror(change)
		return
	case podutil.IsStatic(change.Pod):
		k.mirrors.HandleStatic(change)
	}
	k.workers.HandlePod(change)
}

// SourceReady says that all sources have delivered all their Pods: what the runtime holds beyond them is ended, and
// what is left of others on the disk is removed. It must not be called on a runtime that is shared with another
// node agent.
func (k *Kubelet) SourcesReady() {
	k.mirrors.SourcesReady()
	k.workers.SourcesReady()
	k.once.sourced.Do(func() { close(k.sourced) })
}

// gone takes note that nothing is left of a Pod.
func (k *Kubelet) gone(uid types.UID) {
	k.sources.pods.PodGone(uid)
	k.readers.tell(Report{UID: uid, Gone: true})
}

// Report is news of one Pod on the node.
type Report struct {
	UID types.UID
	// Status is the Pod's status as the node agent knows it.
	Status corev1.PodStatus
	// Gone says that nothing of the Pod is left on the node; Status is empty then.
	Gone bool
}

// Subscribe calls fn with each report from now on, until the returned function is called. fn must not block, and may
// be called from several goroutines.
func (k *Kubelet) Subscribe(fn func(Report)) (cancel func()) { return k.readers.add(fn) }

// readers are those who want to know how Pods fare.
type readers struct {
	mu   sync.Mutex
	next int
	all  map[int]func(Report)
}

func (r *readers) add(fn func(Report)) (cancel func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[int]func(Report){}
	}
	id := r.next
	r.next++
	r.all[id] = fn
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.all, id)
	}
}

// addOnce is add for a reader that is taken off the list when it returns true.
func (r *readers) addOnce(fn func(Report) bool) (cancel func()) {
	var id int
	off := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.all, id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[int]func(Report){}
	}
	id = r.next
	r.next++
	r.all[id] = func(report Report) {
		if fn(report) {
			off()
		}
	}
	return off
}

func (r *readers) tell(report Report) {
	r.mu.Lock()
	fns := make([]func(Report), 0, len(r.all))
	for _, fn := range r.all {
		fns = append(fns, fn)
	}
	r.mu.Unlock()
	for _, fn := range fns {
		fn(report)
	}
}

func (r *readers) changed(pod *corev1.Pod, status corev1.PodStatus) {
	r.tell(Report{UID: pod.UID, Status: *status.DeepCopy()})
}
