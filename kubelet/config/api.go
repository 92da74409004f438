package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/listwatch"
)

// Handler handles a source's changes. Its methods are called one at a time, in order, and must not block.
type Handler interface {
	// HandlePod handles one change.
	HandlePod(Change)
	// SourcesReady is called once, when the source has delivered all its Pods for the first time.
	SourcesReady()
}

// APIConfig are the values an API works with.
type APIConfig struct {
	// NodeName is the node whose Pods are watched.
	NodeName string
}

// APIDeps are what an API needs from others.
type APIDeps struct {
	// Client reads Pods.
	Client kubernetes.Interface
	// Handler handles the changes.
	Handler Handler
	// Logger may be nil.
	Logger *slog.Logger
	// Clock may be nil.
	Clock clock.Clock
}

// API is the source of the Pods that the API server has bound to this node.
type API struct {
	config APIConfig
	deps   APIDeps

	mu    sync.Mutex // guards all below
	pods  map[types.UID]*corev1.Pod
	names map[types.NamespacedName]types.UID
	ready bool
}

var _ cache.ReflectorStore = (*API)(nil)

// NewAPI returns the source. Start runs it.
func NewAPI(deps APIDeps, config APIConfig) (*API, error) {
	if config.NodeName == "" {
		return nil, errors.New("config: APIConfig.NodeName is required")
	}
	if deps.Client == nil {
		return nil, errors.New("config: APIDeps.Client is required")
	}
	if deps.Handler == nil {
		return nil, errors.New("config: APIDeps.Handler is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &API{
		config: config, deps: deps,
		pods: map[types.UID]*corev1.Pod{}, names: map[types.NamespacedName]types.UID{},
	}, nil
}

// Start lists and watches until ctx ends. While the API server is away it retries, and nothing changes.
func (a *API) Start(ctx context.Context) error {
	selector := fields.OneTermEqualSelector("spec.nodeName", a.config.NodeName).String()
	pods := listwatch.Select(a.deps.Client.CoreV1().Pods(metav1.NamespaceAll), a.deps.Client,
		func(options *metav1.ListOptions) { options.FieldSelector = selector })
	reflector := cache.NewReflectorWithOptions(pods, &corev1.Pod{}, a,
		cache.ReflectorOptions{Name: "kubelet pods of " + a.config.NodeName, Clock: a.deps.Clock})
	reflector.RunWithContext(ctx)
	return nil
}

// Pods returns the known Pods, in no order. They are shared and must not be modified.
func (a *API) Pods() []*corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*corev1.Pod, 0, len(a.pods))
	for _, pod := range a.pods {
		out = append(out, pod)
	}
	return out
}

// Add implements cache.ReflectorStore: a Pod appeared.
func (a *API) Add(obj any) error { return a.Update(obj) }

// Update implements cache.ReflectorStore: a Pod changed.
func (a *API) Update(obj any) error {
	pod, err := asPod(obj)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.apply(pod)
	return nil
}

// Delete implements cache.ReflectorStore: a Pod is gone.
func (a *API) Delete(obj any) error {
	pod, err := asPod(obj)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(pod.UID)
	return nil
}

// Replace implements cache.ReflectorStore: these are all Pods.
func (a *API) Replace(list []any, _ string) error {
	pods := make([]*corev1.Pod, 0, len(list))
	for _, obj := range list {
		pod, err := asPod(obj)
		if err != nil {
			return err
		}
		pods = append(pods, pod)
	}
	// Admission is first come, first served, so older Pods come first.
	slices.SortStableFunc(pods, func(x, y *corev1.Pod) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	keep := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		keep[pod.UID] = true
	}
	for uid := range a.pods {
		if !keep[uid] {
			a.remove(uid)
		}
	}
	for _, pod := range pods {
		a.apply(pod)
	}
	if !a.ready {
		a.ready = true
		a.deps.Logger.Info("received the first list of Pods", "node", a.config.NodeName, "pods", len(pods))
		a.deps.Handler.SourcesReady()
	}
	return nil
}

// Resync implements cache.ReflectorStore and does nothing.
func (a *API) Resync() error { return nil }

// apply stores a Pod's newest version and passes the change to the handler. The caller holds mu.
func (a *API) apply(pod *corev1.Pod) {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if other, ok := a.names[name]; ok && other != pod.UID {
		// A new Pod has the name of one whose deletion was missed.
		a.remove(other)
	}
	old, known := a.pods[pod.UID]
	pod = a.annotate(pod, old)
	a.pods[pod.UID], a.names[name] = pod, pod.UID
	if !known {
		a.deps.Handler.HandlePod(Change{Op: Add, Pod: pod})
		return
	}
	if op, changed := changeOp(old, pod); changed {
		a.deps.Handler.HandlePod(Change{Op: op, Pod: pod})
	}
}

// remove forgets a Pod and passes its removal to the handler. The caller holds mu.
func (a *API) remove(uid types.UID) {
	pod, ok := a.pods[uid]
	if !ok {
		return
	}
	delete(a.pods, uid)
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if a.names[name] == uid {
		delete(a.names, name)
	}
	a.deps.Handler.HandlePod(Change{Op: Remove, Pod: pod})
}

// annotate returns a copy of the Pod with our local annotations and without managed fields, which the kubelet does not
// use. The time of first sight is that of the old version, and so are the strings of annotations that it has, too: workers may
// hold several versions of a Pod, and annotations may have 256 KiB.
func (a *API) annotate(pod, old *corev1.Pod) *corev1.Pod {
	var before map[string]string
	if old != nil {
		before = old.Annotations
	}
	seen := before[SeenAnnotation]
	if seen == "" {
		seen = a.deps.Clock.Now().Format(time.RFC3339Nano)
	}
	out := *pod // the object belongs to the reflector
	out.ManagedFields = nil
	out.Annotations = make(map[string]string, len(pod.Annotations)+2)
	for key, value := range pod.Annotations {
		if isLocalAnnotation(key) {
			continue
		}
		if known := before[key]; known == value {
			value = known
		}
		out.Annotations[key] = value
	}
	out.Annotations[SourceAnnotation], out.Annotations[SeenAnnotation] = SourceAPI, seen
	return &out
}

func asPod(obj any) (*corev1.Pod, error) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("Pod source: got a %T, want a Pod", obj)
	}
	return pod, nil
}
