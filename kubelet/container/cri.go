package container

import (
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FromCRI builds the status of one Pod from the runtime's answers about its sandboxes and containers, in any order.
// All of them have to belong to the Pod with that UID; nil entries are skipped. The annotations of sandboxes are left out. The slices may
// be reused by the caller, the messages they point to may not be changed any more.
func FromCRI(uid types.UID, sandboxes []*runtimeapi.PodSandboxStatus,
	containers []*runtimeapi.ContainerStatus) *PodStatus {
	status := &PodStatus{UID: uid}
	for _, s := range sandboxes {
		if s == nil {
			continue
		}
		status.Sandboxes = append(status.Sandboxes, withoutAnnotations(s))
		status.nameFrom(s.Labels)
	}
	for _, c := range containers {
		if c == nil {
			continue
		}
		status.Containers = append(status.Containers, ContainerFromCRI(c))
		status.nameFrom(c.Labels)
	}
	status.arrange()
	return status
}

// withoutAnnotations returns the sandbox without a copy of the Pod's annotations, which may have 256 KiB, and which the Pod's source has.
func withoutAnnotations(s *runtimeapi.PodSandboxStatus) *runtimeapi.PodSandboxStatus {
	if len(s.Annotations) == 0 {
		return s
	}
	return &runtimeapi.PodSandboxStatus{
		Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Network: s.Network, Linux: s.Linux, Labels: s.Labels,
		RuntimeHandler: s.RuntimeHandler,
	}
}

// arrange puts the newest first, and takes the addresses of the newest ready sandbox.
func (p *PodStatus) arrange() {
	slices.SortFunc(p.Sandboxes, func(a, b *runtimeapi.PodSandboxStatus) int {
		return cmp.Or(cmp.Compare(b.GetMetadata().GetAttempt(), a.GetMetadata().GetAttempt()),
			cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
	})
	slices.SortFunc(p.Containers, func(a, b *ContainerStatus) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	p.IPs = nil
	if ready := p.ReadySandboxes(); len(ready) > 0 {
		p.IPs = SandboxIPs(ready[0])
	}
}

// nameFrom takes the Pod's name from labels, once.
func (p *PodStatus) nameFrom(labels map[string]string) {
	if p.Name == "" {
		p.Name, p.Namespace = labels[PodNameLabel], labels[PodNamespaceLabel]
	}
}

// SandboxIPs returns the addresses the runtime gave the sandbox, the primary one first. What is not an address is
// left out; a sandbox on the host's network has none.
func SandboxIPs(sandbox *runtimeapi.PodSandboxStatus) []string {
	network := sandbox.GetNetwork()
	if network == nil {
		return nil
	}
	var ips []string
	add := func(ip string) {
		if _, err := netip.ParseAddr(ip); err == nil {
			ips = append(ips, ip)
		}
	}
	add(network.Ip)
	for _, more := range network.AdditionalIps {
		add(more.GetIp())
	}
	return ips
}

// OnePerFamily returns the first address of each family, that of near's family first, which is IPv4 if near is no address. A runtime may
// have more addresses of a Pod, in any order; the API takes no more of them, and the first one is the Pod's.
func OnePerFamily(ips []string, near string) []string {
	families := map[bool]string{} // by whether it is IPv6
	for _, ip := range ips {
		address, err := netip.ParseAddr(ip)
		if is6 := address.Unmap().Is6(); err == nil && families[is6] == "" {
			families[is6] = address.Unmap().String()
		}
	}
	node, _ := netip.ParseAddr(near)
	first := node.Unmap().Is6()
	return slices.DeleteFunc([]string{families[first], families[!first]}, func(ip string) bool { return ip == "" })
}

// ContainerFromCRI converts one ContainerStatus of the CRI. Annotations that do not parse are treated as absent:
// they may come from another program, and a container must be killable whatever stands on it.
func ContainerFromCRI(c *runtimeapi.ContainerStatus) *ContainerStatus {
	status := &ContainerStatus{
		ID:                       c.Id,
		Name:                     c.Labels[ContainerNameLabel],
		State:                    stateFromCRI(c.State),
		CreatedAt:                timeFromCRI(c.CreatedAt),
		StartedAt:                timeFromCRI(c.StartedAt),
		FinishedAt:               timeFromCRI(c.FinishedAt),
		ExitCode:                 c.ExitCode,
		Reason:                   c.Reason,
		Message:                  c.Message,
		Image:                    imageName(c.Image),
		ImageRef:                 c.ImageRef,
		ImageID:                  c.ImageId,
		RuntimeHandler:           c.Image.GetRuntimeHandler(),
		Attempt:                  attempt(c),
		LogPath:                  c.LogPath,
		TerminationMessagePath:   c.Annotations[TerminationMessagePathAnnotation],
		TerminationMessagePolicy: corev1.TerminationMessagePolicy(c.Annotations[TerminationMessagePolicyAnnotation]),
		PodGracePeriod:           seconds(c.Annotations[TerminationGracePeriodAnnotation]),
		DeletionGracePeriod:      seconds(c.Annotations[DeletionGracePeriodAnnotation]),
		Labels:                   c.Labels,
		Annotations:              c.Annotations,
		Mounts:                   c.Mounts,
		User:                     c.User,
		Resources:                c.Resources,
		StopSignal:               c.StopSignal,
	}
	if status.Name == "" {
		status.Name = c.GetMetadata().GetName()
	}
	if startCutOff(c) {
		status.State = StateCreated
	}
	if hash, err := strconv.ParseUint(c.Annotations[HashAnnotation], 16, 64); err == nil {
		status.SpecHash = hash
	}
	if raw, ok := c.Annotations[PreStopAnnotation]; ok {
		var handler corev1.LifecycleHandler
		if json.Unmarshal([]byte(raw), &handler) == nil {
			status.PreStop = &handler
		}
	}
	if raw, ok := c.Annotations[PortsAnnotation]; ok {
		var ports []corev1.ContainerPort
		if json.Unmarshal([]byte(raw), &ports) == nil {
			status.Ports = ports
		}
	}
	return status
}

const (
	// startError is the reason that containerd gives an instance whose start failed.
	startError = "StartError"
	// killed is the exit code of a process that was ended by SIGKILL.
	killed = 137
	// lost and lostReason are what containerd says of a process whose end it has not seen; with lost and failed ends,
	// too, a runc that was to become a container's process and cannot.
	lost       = 255
	lostReason = "Unknown"
	failed     = "Error"
)

// startCutOff says that an instance never ran although the runtime counts it as ended: whoever asked for its start,
// or the runtime itself, died in the middle of it. containerd reports that in four ways: the call was cancelled with
// its caller; or it finds a process on its own restart that was made and not yet let run, and kills it; or it cannot
// find out what has become of that process, and we have killed it; or that process gave up, because its shim, whose
// calls end with containerd, had killed the `runc start` that was to let it run. Such an instance has failed at nothing,
// and is to be made again under the same number. A start that failed by itself (no such program, say) ends with another
// code and another message.
func startCutOff(c *runtimeapi.ContainerStatus) bool {
	if c.StartedAt > 0 {
		return false
	}
	switch c.State {
	case runtimeapi.ContainerState_CONTAINER_EXITED:
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		return c.CreatedAt > 0 // to be removed as one that was only made is, which ends its process if it has one
	default:
		return false
	}
	if c.Reason == startError {
		return strings.Contains(c.Message, context.Canceled.Error()) || strings.Contains(c.Message, "code = Canceled")
	}
	// Without a time of creation even containerd's notes are lost: it may have run for long.
	gaveUp := c.ExitCode == lost && (c.Reason == lostReason || c.Reason == failed && c.Message == "")
	return c.ExitCode == killed || gaveUp && c.CreatedAt > 0
}

func stateFromCRI(state runtimeapi.ContainerState) State {
	switch state {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return StateCreated
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return StateRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return StateExited
	default:
		return StateUnknown
	}
}

// timeFromCRI keeps "never" (0, and what the Unix epoch's zero time becomes in nanoseconds) the zero time.
func timeFromCRI(nanoseconds int64) time.Time {
	if nanoseconds <= 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

func imageName(image *runtimeapi.ImageSpec) string {
	if image.GetImage() != "" {
		return image.GetImage()
	}
	return image.GetUserSpecifiedImage()
}

// attempt is the annotation's count, or the one in the metadata if that is higher or the only one.
func attempt(c *runtimeapi.ContainerStatus) uint32 {
	n := c.GetMetadata().GetAttempt()
	noted, err := strconv.ParseUint(c.Annotations[RestartCountAnnotation], 10, 32)
	if err != nil {
		return n
	}
	return max(n, uint32(noted))
}

func seconds(annotation string) *int64 {
	n, err := strconv.ParseInt(annotation, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}
