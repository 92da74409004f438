package podworker_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/status"
)

type volumes struct {
	mu       sync.Mutex
	mounted  map[types.UID]bool
	mounts   int
	gate     chan struct{}
	mountErr error // of Mount, set before there are Pods
}

func (v *volumes) block() func() {
	v.mu.Lock()
	defer v.mu.Unlock()
	gate := make(chan struct{})
	v.gate = gate
	return sync.OnceFunc(func() { close(gate) })
}

func (v *volumes) mountCount() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mounts
}

func (v *volumes) has(uid types.UID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mounted[uid]
}

func (v *volumes) Mount(ctx context.Context, pod *corev1.Pod) error {
	if pod.Annotations["panic"] == "mount" {
		panic("mount of " + pod.Name)
	}
	v.mu.Lock()
	v.mounts++
	gate := v.gate
	v.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mountErr != nil {
		return v.mountErr
	}
	v.mounted[pod.UID] = true
	return nil
}

func (v *volumes) Unmount(_ context.Context, uid types.UID) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.mounted, uid)
	return nil
}

func (v *volumes) PodUpdated(*corev1.Pod) {}

type statuses struct {
	mu       sync.Mutex
	last     map[types.UID]corev1.PodStatus
	finished map[types.UID]bool
	changed  chan struct{}
	refused  []string         // containers of statuses that the API does not accept: they have ended for good, and have not any more
	atFinish func()           // set before there are Pods; called when an object may go
	hidden   bool             // Previous does not know the status yet
	mirrored corev1.PodStatus // of each static Pod's mirror Pod
	unready  int              // how often a Pod that was ready was reported not to be
}

func (s *statuses) Set(pod *corev1.Pod, st corev1.PodStatus) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, before := range s.last[pod.UID].ContainerStatuses {
		c, _ := podutil.FindContainer(&pod.Spec, before.Name)
		now := podutil.FindStatus(st.ContainerStatuses, before.Name)
		if before.State.Terminated != nil && c != nil && now != nil && now.State.Terminated == nil &&
			!status.WillRestart(&pod.Spec, c, before.State.Terminated.ExitCode) {
			s.refused = append(s.refused, before.Name)
		}
	}
	if before := s.last[pod.UID]; podutil.IsReady(&before) && !podutil.IsReady(&st) {
		s.unready++
	}
	s.last[pod.UID] = st
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return true
}

func (s *statuses) Get(uid types.UID) (corev1.PodStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.last[uid]
	return st, ok
}

// Previous is the status that the Pod came with, while hidden is not set.
func (s *statuses) Previous(pod *corev1.Pod) (corev1.PodStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hidden {
		return corev1.PodStatus{}, false
	}
	if podutil.IsStatic(pod) {
		return s.mirrored, true
	}
	return pod.Status, true
}

func (s *statuses) Observe(*corev1.Pod) {}

func (s *statuses) Finish(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.atFinish != nil {
		s.atFinish()
	}
	s.finished[pod.UID] = true
}

func (s *statuses) isFinished(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finished[uid]
}

func (s *statuses) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, uid)
}

// probes succeed at once. resumed, if set, receives the containers of an earlier process whose probes go on.
type probes struct{ resumed chan<- prober.Container }

func (p probes) ContainerStarted(_ *corev1.Pod, c prober.Container) {
	if p.resumed != nil && c.Adopted {
		p.resumed <- c
	}
}
func (probes) ContainerStopped(types.UID, string)   {}
func (probes) StopLivenessAndStartup(types.UID)     {}
func (probes) RemovePod(types.UID)                  {}
func (probes) Ready(string) (bool, bool)            { return true, true }
func (probes) Started(string) (bool, bool)          { return true, true }
func (probes) Failed(string) (prober.Failure, bool) { return prober.Failure{}, false }

// hooks fail with the queued errors and then succeed.
type hooks struct {
	mu       sync.Mutex
	failures []error
	// block, if set before there are Pods, delays hooks until it is closed; blocked is how many wait, canceled how many were canceled.
	block             chan struct{}
	blocked, canceled atomic.Int32
}

func (h *hooks) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = append(h.failures, err)
}

func (h *hooks) Run(ctx context.Context, _ lifecycle.Target, _ *corev1.LifecycleHandler) error {
	if h.block != nil {
		h.blocked.Add(1)
		select {
		case <-h.block:
		case <-ctx.Done():
			h.canceled.Add(1)
			return ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.failures) == 0 {
		return nil
	}
	err := h.failures[0]
	h.failures = h.failures[1:]
	return err
}

type admitter struct {
	mu            sync.Mutex
	rejection     *status.Failure
	resizeFailure *status.Failure // the result of Resize
	milliCPU      int64           // of the node: Resize defers what does not fit; 0 for no limit
	calls         map[string]int
	others        []*corev1.Pod // which the last Pod was admitted beside
	readmission   *status.Failure
	readmitted    []string
}

func (a *admitter) Admit(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.others = others
	if a.calls == nil {
		a.calls = map[string]int{}
	}
	if pod.Status.StartTime != nil {
		a.calls["again"]++
	}
	return a.rejection
}

func (a *admitter) Readmit(pod *corev1.Pod) *status.Failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.readmitted = append(a.readmitted, string(pod.UID))
	return a.readmission
}

func (a *admitter) Resize(_, pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	sum := int64(0)
	for _, p := range append(others, pod) {
		sum += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
	}
	if a.milliCPU > 0 && sum > a.milliCPU {
		return &status.Failure{Reason: corev1.PodReasonDeferred, Message: "later"}
	}
	return a.resizeFailure
}

func (a *admitter) setMilliCPU(amount int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.milliCPU = amount
}

func (a *admitter) setResizeFailure(why *status.Failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resizeFailure = why
}

func (a *admitter) callCount(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls[what]
}

type builder struct {
	mu      sync.Mutex
	resized []bool // calls of ResizePod
	// classes are the values of SetClassRequests; the next call fails with classesErr.
	classes    []cm.Requests
	classesErr error
	// prepareErr is what the next PreparePod fails with.
	prepareErr error
	// handlerErr is what each RuntimeHandler fails with.
	handlerErr error
	// resourcesErr is what each PrepareResources fails with.
	resourcesErr error
	// unprepare, if set, is what UnprepareResources does.
	unprepare func() error
	// cpus are those of all containers; placed are the distinct values of the container main in calls of Placed, in order.
	cpus   string
	placed []string
	// removedCgroups are the calls of RemoveCgroup: the name of the Pod and the id.
	removedCgroups []string
	// cgroups are the IDs of containers that have cgroups.
	cgroups []string
	// containerPanics is how many calls of Container panic.
	containerPanics int
}

func (b *builder) PrepareResources(context.Context, *corev1.Pod) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.resourcesErr
}

func (b *builder) Placed(_ types.UID, running map[string]string, _ func(string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	place, runs := running["main"]
	switch {
	case !runs:
		place = "nowhere"
	case place == "":
		place = "anywhere"
	}
	if n := len(b.placed); n == 0 || b.placed[n-1] != place {
		b.placed = append(b.placed, place)
	}
}

func (b *builder) CPUs(types.UID, string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cpus
}

func (b *builder) Move(uid types.UID, container string) string { return b.CPUs(uid, container) }

func (b *builder) setCPUs(cpus string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cpus = cpus
}

// places returns where the container main was since the last call.
func (b *builder) places() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	placed := b.placed
	b.placed = nil
	return placed
}

func (b *builder) DeviceStatus(*corev1.Pod, string) []corev1.ResourceStatus { return nil }

func (b *builder) PreparePod(context.Context, *corev1.Pod) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.prepareErr
	b.prepareErr = nil
	return err
}

func (b *builder) RuntimeHandler(context.Context, *corev1.Pod) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return "", b.handlerErr
}

func (*builder) Sandbox(_ context.Context, pod *corev1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt,
		},
		Labels: labels(pod, ""),
	}
	if pod.Spec.HostNetwork {
		config.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}}
	}
	return config, nil
}

func (b *builder) Container(_ context.Context, req podworker.ContainerRequest) (*runtimeapi.ContainerConfig, error) {
	b.mu.Lock()
	if b.containerPanics--; b.containerPanics >= 0 {
		b.mu.Unlock()
		panic("container of " + req.Pod.Name)
	}
	b.mu.Unlock()
	resources := b.Resources(req.Pod, req.Start.Container)
	resources.CpusetCpus = b.CPUs(req.Pod.UID, req.Start.Container.Name)
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: req.Start.Container.Name, Attempt: req.Start.Attempt},
		Image:    &runtimeapi.ImageSpec{Image: req.Start.Container.Image},
		Labels:   labels(req.Pod, req.Start.Container.Name),
		Linux:    &runtimeapi.LinuxContainerConfig{Resources: resources},
		Annotations: map[string]string{
			container.HashAnnotation:         strconv.FormatUint(kuberuntime.HashContainer(req.Start.Container), 16),
			container.RestartCountAnnotation: strconv.Itoa(int(req.Start.Attempt)),
		},
	}, nil
}

func labels(pod *corev1.Pod, name string) map[string]string {
	l := map[string]string{
		container.PodUIDLabel: string(pod.UID), container.PodNameLabel: pod.Name,
		container.PodNamespaceLabel: pod.Namespace,
	}
	if name != "" {
		l[container.ContainerNameLabel] = name
	}
	return l
}

func (*builder) Resources(_ *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{
		CpuShares: 2 + c.Resources.Requests.Cpu().MilliValue(), MemoryLimitInBytes: c.Resources.Limits.Memory().Value(),
	}
}

func (b *builder) ResizePod(_ context.Context, _ *corev1.Pod, limited bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resized = append(b.resized, limited)
	return nil
}

func (b *builder) SetClassRequests(_ context.Context, requests cm.Requests) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.classesErr; err != nil {
		b.classesErr = nil
		return err
	}
	b.classes = append(b.classes, requests)
	return nil
}

func (*builder) SandboxResources(pod *corev1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources) {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return &runtimeapi.LinuxContainerResources{CpuShares: 2 + requests.Cpu().MilliValue()}, nil
}

// burstableCPU returns the CPU of the last call of SetClassRequests, -1 if there was none.
func (b *builder) burstableCPU() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.classes) == 0 {
		return -1
	}
	return b.classes[len(b.classes)-1].BurstableCPU
}

func (b *builder) UnprepareResources(context.Context, types.UID) error {
	b.mu.Lock()
	unprepare := b.unprepare
	b.mu.Unlock()
	if unprepare == nil {
		return nil
	}
	return unprepare()
}

func (*builder) ReleasePod(context.Context, types.UID) error                           { return nil }
func (*builder) ForgetPod(context.Context, *corev1.Pod) error                          { return nil }
func (*builder) LastAttempt(*corev1.Pod, string) (uint32, bool)                        { return 0, false }
func (*builder) TerminationMessage(context.Context, *container.ContainerStatus) string { return "" }

func (*builder) RemoveTerminationLog(*container.ContainerStatus) error { return nil }

func (b *builder) Cgroups(*corev1.Pod) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.cgroups), nil
}

func (b *builder) RemoveCgroup(_ context.Context, pod *corev1.Pod, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removedCgroups = append(b.removedCgroups, pod.Name+" "+id)
	return nil
}

// recorder counts the events it is given, by reason and message.
type recorder struct {
	mu     sync.Mutex
	counts map[string]int
	// fieldPaths are the parts of Pods that events were about, by the event's reason.
	fieldPaths map[string][]string
	// all are the events as "type reason message".
	all []string
}

// hasPrefix reports whether there was an event of which this is the beginning.
func (r *recorder) hasPrefix(beginning string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.all, func(event string) bool { return strings.HasPrefix(event, beginning) })
}

// fields are the parts of Pods that events of the reason were about.
func (r *recorder) fields(reason string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.fieldPaths[reason])
}

func (r *recorder) count(event string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[event]
}

func (r *recorder) Event(object runtime.Object, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, kind+" "+reason+" "+message)
	if ref, ok := object.(*corev1.ObjectReference); ok {
		r.fieldPaths[reason] = append(r.fieldPaths[reason], ref.FieldPath)
	}
	r.counts[reason+": "+message]++
}

func (r *recorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorder) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(object, kind, reason, format, args...)
}

// removed returns the calls of RemoveCgroup.
func (b *builder) removed() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.removedCgroups)
}
