package podresources

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	alphaapi "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/unixsock"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

// Names in the kubelet's directory, as clients expect them.
const (
	Dir        = "pod-resources"
	socketName = "kubelet.sock"
)

// Limits of the requests of all clients together, which are upstream's.
const (
	requestsPerSecond = 100
	requestBurst      = 10
)

// readyTimeout bounds how long after the start requests wait until all Pods are known: without an API server that may be for ever, and static
// Pods run all the same.
const readyTimeout = 10 * time.Second

// version is the value of the label of metrics.
const version = "v1"

// Source has what containers have for themselves. *resources.Manager implements it.
type Source interface {
	// ContainerResources returns what a container has, AllocatableResources what containers may have.
	ContainerResources(pod *corev1.Pod, c *corev1.Container) *podresourcesapi.ContainerResources
	AllocatableResources() *podresourcesapi.AllocatableResourcesResponse
}

// Deps holds what a Server needs; all are required.
type Deps struct {
	Source Source
	// Pods returns the Pods that the API knows: those that use resources of the node, perhaps also those that have ended.
	Pods func() []*corev1.Pod
	// Ready is closed when Pods returns all Pods of the node: right after the kubelet's start it does not.
	Ready   <-chan struct{}
	Metrics *metrics.Metrics
}

// Server serves the API.
type Server struct {
	podresourcesapi.UnsafePodResourcesListerServer
	deps Deps
	dir  string
	// late is closed when requests do not wait for all Pods any more; nil before Start.
	late <-chan struct{}
}

// New returns a Server for the kubelet's directory.
func New(deps Deps, root string) (*Server, error) {
	switch {
	case deps.Source == nil:
		return nil, errors.New("podresources: Deps.Source is required")
	case deps.Pods == nil:
		return nil, errors.New("podresources: Deps.Pods is required")
	case deps.Ready == nil:
		return nil, errors.New("podresources: Deps.Ready is required")
	case deps.Metrics == nil:
		return nil, errors.New("podresources: Deps.Metrics is required")
	}
	return &Server{deps: deps, dir: filepath.Join(root, Dir)}, nil
}

// Start serves the socket until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o750); err != nil {
		return fmt.Errorf("create the directory of the podresources socket: %w", err)
	}
	listener, err := unixsock.Replace(ctx, filepath.Join(s.dir, socketName))
	if err != nil {
		return fmt.Errorf("serve podresources: %w", err)
	}
	limiter := rate.NewLimiter(requestsPerSecond, requestBurst)
	server := grpc.NewServer(contain.ServerOptions("podresources", func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if !limiter.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return next(ctx, request)
	})...)
	podresourcesapi.RegisterPodResourcesListerServer(server, s)
	alphaapi.RegisterPodResourcesListerServer(server, &alphaServer{main: s})
	waiting, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	s.late = waiting.Done()
	if err := contain.Serve(ctx, "podresources.serve", server, listener); err != nil {
		return fmt.Errorf("serve podresources: %w", err)
	}
	return nil
}

// pods returns the Pods of the node, as soon as they are known: a client that reads of none takes all resources for free ones.
func (s *Server) pods(ctx context.Context) ([]*corev1.Pod, error) {
	select {
	case <-s.deps.Ready:
		return s.deps.Pods(), nil
	case <-s.late:
		return s.deps.Pods(), nil
	case <-ctx.Done():
		return nil, status.FromContextError(fmt.Errorf("wait until the kubelet knows all Pods: %w", ctx.Err())).Err()
	}
}

func (s *Server) count(kinds ...string) {
	for _, kind := range kinds {
		s.deps.Metrics.PodResources[kind].WithLabelValues(version).Inc()
	}
}

// List implements podresourcesapi.PodResourcesListerServer.
func (s *Server) List(ctx context.Context, _ *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	s.count(metrics.RequestsTotal, metrics.RequestsList)
	pods, err := s.pods(ctx)
	if err != nil {
		return nil, err
	}
	out := &podresourcesapi.ListPodResourcesResponse{}
	for _, pod := range pods {
		out.PodResources = append(out.PodResources, s.of(pod))
	}
	return out, nil
}

// GetAllocatableResources implements podresourcesapi.PodResourcesListerServer.
func (s *Server) GetAllocatableResources(context.Context, *podresourcesapi.AllocatableResourcesRequest,
) (*podresourcesapi.AllocatableResourcesResponse, error) {
	s.count(metrics.RequestsTotal, metrics.RequestsGetAllocatable)
	return s.deps.Source.AllocatableResources(), nil
}

// Get implements podresourcesapi.PodResourcesListerServer.
func (s *Server) Get(ctx context.Context, request *podresourcesapi.GetPodResourcesRequest) (*podresourcesapi.GetPodResourcesResponse, error) {
	s.count(metrics.RequestsTotal, metrics.RequestsGet)
	pods, err := s.pods(ctx)
	if err != nil {
		s.count(metrics.ErrorsGet)
		return nil, err
	}
	var found *corev1.Pod
	for _, pod := range pods {
		if pod.Name != request.PodName || pod.Namespace != request.PodNamespace {
			continue
		}
		// An old Pod of the same name may still be terminating.
		if found == nil || found.CreationTimestamp.Before(&pod.CreationTimestamp) {
			found = pod
		}
	}
	if found == nil {
		s.count(metrics.ErrorsGet)
		return nil, fmt.Errorf("pod %s in namespace %s not found", request.PodName, request.PodNamespace)
	}
	return &podresourcesapi.GetPodResourcesResponse{PodResources: s.of(found)}, nil
}

// of returns what the containers of a Pod have that run side by side.
func (s *Server) of(pod *corev1.Pod) *podresourcesapi.PodResources {
	out := &podresourcesapi.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	for c, kind := range podutil.Containers(&pod.Spec) {
		if kind == podutil.Regular || podutil.IsSidecar(c, kind) {
			out.Containers = append(out.Containers, s.deps.Source.ContainerResources(pod, c))
		}
	}
	return out
}
