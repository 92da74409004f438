package agent

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	podconfig "github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/mirror"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/status"
)

// callerSource is the name of SetStatic among the sources.
const callerSource = podconfig.SourceFile + " of the caller"

// podHandler passes the changes of Pods from all sources on to the managers of mirror Pods and of workers.
type podHandler struct {
	mirrors *mirror.Manager
	workers *podworker.Manager
	now     func() time.Time
	// noPodResources drops the resources of Pods as a whole.
	noPodResources bool
	// lastUpdate is when a source last delivered something, in nanoseconds of the Unix epoch.
	lastUpdate atomic.Int64
}

func (h *podHandler) handle(change podconfig.Change) {
	h.lastUpdate.Store(h.now().UnixNano())
	if h.noPodResources && change.Pod.Spec.Resources != nil {
		pod := *change.Pod // it belongs to its source
		pod.Spec.Resources = nil
		change.Pod = &pod
	}
	switch {
	case podutil.IsMirror(change.Pod):
		h.mirrors.HandleMirror(change)
		return
	case podutil.IsStatic(change.Pod):
		h.mirrors.HandleStatic(change)
	}
	h.workers.HandlePod(change)
}

// sourcesReady has those stopped and removed that no source has delivered.
func (h *podHandler) sourcesReady() {
	h.mirrors.SourcesReady()
	h.workers.SourcesReady()
}

// podSources deliver the node's Pods.
type podSources struct {
	handler *podHandler
	static  *podconfig.Static
	ready   *podconfig.SourcesReady
	// The others are nil if Pods do not come from there.
	file *podconfig.File
	http *podconfig.HTTP
	api  *podconfig.API
	// registered is closed when the Node is registered.
	registered <-chan struct{}
}

func newSources(base *base, n *nodeComponents, p *podComponents) (*podSources, error) {
	config, deps := &base.config, &base.deps
	s := &podSources{
		handler:    &podHandler{mirrors: p.mirrors, workers: p.workers, now: deps.Clock.Now, noPodResources: config.Pods.NoPodResources},
		registered: n.manager.Registered(),
	}
	var err error
	if s.static, err = podconfig.NewStatic(podconfig.StaticDeps{
		Handle: s.handler.handle, Logger: base.logger("static pods"), Clock: deps.Clock,
		OnConflict: func(pod *corev1.Pod, message string) {
			deps.Recorder.Event(pod, corev1.EventTypeWarning, "FailedValidation", message)
		},
	}); err != nil {
		return nil, err
	}
	base.podEvents.Subscribe(func(event status.Event) {
		if event.Removed {
			s.static.PodGone(event.UID)
		}
	})
	if config.Static.HandlePodOnly {
		return s, nil
	}
	s.ready = podconfig.NewSourcesReady(s.handler.sourcesReady, sourceNames(base)...)
	if err := s.addStatic(base); err != nil {
		return nil, err
	}
	if deps.standalone {
		return s, nil
	}
	s.api, err = podconfig.NewAPI(podconfig.APIDeps{
		Client: deps.Client, Handler: apiHandler{s.handler, s.ready}, Clock: deps.Clock, Logger: deps.Logger,
	}, podconfig.APIConfig{NodeName: config.Node.Name})
	return s, err
}

// sourceNames returns the names of the configured sources.
func sourceNames(base *base) []string {
	var names []string
	for name, configured := range map[string]bool{
		podconfig.SourceFile: base.config.Static.Path != "", podconfig.SourceHTTP: base.config.Static.URL != "",
		podconfig.SourceAPI: !base.deps.standalone,
	} {
		if configured {
			names = append(names, name)
		}
	}
	return names
}

// addStatic adds the configured sources of static Pods.
func (s *podSources) addStatic(base *base) (err error) {
	config, nodeName, clock, logger := &base.config.Static, base.config.Node.Name, base.deps.Clock, base.logger("static pods")
	if config.Path != "" {
		if s.file, err = podconfig.NewFile(podconfig.FileDeps{
			Set: s.replace(podconfig.SourceFile), Logger: logger, Clock: clock,
		}, podconfig.FileConfig{Path: config.Path, NodeName: nodeName, Period: config.FilePeriod}); err != nil {
			return err
		}
	}
	if config.URL != "" {
		s.http, err = podconfig.NewHTTP(podconfig.HTTPDeps{
			Set: s.replace(podconfig.SourceHTTP), Logger: logger, Clock: clock,
		}, podconfig.HTTPConfig{URL: config.URL, Header: config.Header, NodeName: nodeName, Period: config.HTTPPeriod})
	}
	return err
}

// replace returns the function that takes all Pods of a source of static Pods.
func (s *podSources) replace(source string) func([]*corev1.Pod) {
	return func(pods []*corev1.Pod) {
		s.static.Replace(source, pods)
		s.ready.MarkReady(source)
	}
}

// Start watches all sources until ctx ends.
func (s *podSources) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if s.file != nil {
		group.Go(contain.Func("agent.Start", "", func() error { return s.file.Start(ctx) }))
	}
	if s.http != nil {
		group.Go(contain.Func("agent.Start", "", func() error { return s.http.Start(ctx) }))
	}
	if s.api != nil {
		group.Go(contain.Func("agent.Start", "", func() error { return s.startAPI(ctx) }))
	}
	return group.Wait()
}

// startAPI watches the Pods of the API server from when the Node is registered: admission looks at its labels.
func (s *podSources) startAPI(ctx context.Context) error {
	select {
	case <-s.registered:
		return s.api.Start(ctx)
	case <-ctx.Done():
		return nil
	}
}

// apiHandler takes the Pods of the API server, which is one source of several.
type apiHandler struct {
	handler *podHandler
	ready   *podconfig.SourcesReady
}

var _ podconfig.Handler = apiHandler{}

// HandlePod implements podconfig.Handler.
func (h apiHandler) HandlePod(change podconfig.Change) { h.handler.handle(change) }

// SourcesReady implements podconfig.Handler.
func (h apiHandler) SourcesReady() { h.ready.MarkReady(podconfig.SourceAPI) }
