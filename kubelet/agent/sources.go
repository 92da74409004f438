package agent

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	// lastUpdate is when a source last delivered something, in nanoseconds of the Unix epoch.
	lastUpdate atomic.Int64
}

func (h *podHandler) handle(change podconfig.Change) {
	h.lastUpdate.Store(h.now().UnixNano())
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
	api     *podconfig.API // nil if Pods do not come from the API server
	// components are the other sources.
	components []component
}

func newSources(base *base, p *podComponents) (*podSources, error) {
	config, deps := &base.config, &base.deps
	s := &podSources{handler: &podHandler{mirrors: p.mirrors, workers: p.workers, now: deps.Clock.Now}}
	logger := base.logger("static pods")
	var err error
	if s.static, err = podconfig.NewStatic(podconfig.StaticDeps{
		Handle: s.handler.handle, Logger: logger, Clock: deps.Clock, OnConflict: func(pod *corev1.Pod, message string) {
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
	var names []string
	if config.Static.Path != "" {
		names = append(names, podconfig.SourceFile)
	}
	if config.Static.URL != "" {
		names = append(names, podconfig.SourceHTTP)
	}
	if !deps.standalone {
		names = append(names, podconfig.SourceAPI)
	}
	ready := podconfig.NewSourcesReady(s.handler.sourcesReady, names...)
	set := func(source string) func([]*corev1.Pod) {
		return func(pods []*corev1.Pod) {
			s.static.Replace(source, pods)
			ready.MarkReady(source)
		}
	}
	if config.Static.Path != "" {
		file, err := podconfig.NewFile(podconfig.FileDeps{
			Set: set(podconfig.SourceFile), Logger: logger, Clock: deps.Clock,
		}, podconfig.FileConfig{Path: config.Static.Path, NodeName: config.Node.Name, Period: config.Static.FilePeriod})
		if err != nil {
			return nil, err
		}
		s.components = append(s.components, component{"static pods of " + config.Static.Path, file.Start})
	}
	if config.Static.URL != "" {
		url, err := podconfig.NewHTTP(podconfig.HTTPDeps{
			Set: set(podconfig.SourceHTTP), Logger: logger, Clock: deps.Clock,
		}, podconfig.HTTPConfig{
			URL: config.Static.URL, Header: config.Static.Header, NodeName: config.Node.Name, Period: config.Static.HTTPPeriod,
		})
		if err != nil {
			return nil, err
		}
		s.components = append(s.components, component{"static pods of " + config.Static.URL, url.Start})
	}
	if deps.standalone {
		return s, nil
	}
	s.api, err = podconfig.NewAPI(podconfig.APIDeps{
		Client: deps.Client, Handler: apiHandler{s.handler, ready}, Clock: deps.Clock, Logger: deps.Logger,
	}, podconfig.APIConfig{NodeName: config.Node.Name})
	return s, err
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

// startAPI watches the node's Pods until ctx ends, from when the Node is registered: admission looks at its labels.
func (s *podSources) startAPI(ctx context.Context, registered <-chan struct{}) error {
	if s.api == nil {
		return nil
	}
	select {
	case <-registered:
	case <-ctx.Done():
		return nil
	}
	return s.api.Start(ctx)
}
