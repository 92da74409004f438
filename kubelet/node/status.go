package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/kubelet/eviction"
)

// maxNames is the number of names per image that the status lists.
const maxNames = 5

// observed is all that a status is computed from.
type observed struct {
	ips       []net.IP
	port      int32     // of the node's HTTPS server
	instance  *Instance // nil if there is no cloud provider
	info      MachineInfo
	usage     Usage
	version   *runtimeapi.VersionResponse // nil until the first response of the runtime
	runtime   *runtimeapi.StatusResponse
	images    []*runtimeapi.Image // nil means unknown, and keeps the Node's list
	notReady  []string            // why the node is not ready
	pressure  []eviction.Condition
	volumes   []corev1.UniqueVolumeName
	volumesOK bool // whether volumes is known; until then the Node's own list is kept
	// featuresDropped says that the API server does not store declared features, so that the Node never has any.
	featuresDropped bool
	// devices are those of device plugins, by resource.
	devices resources
	// resetExtended says that extended resources that are not among devices are none of this machine.
	resetExtended bool
}

// nodeResources computes the node's capacity and what Pods may use of it.
func nodeResources(config *Config, info MachineInfo, usage Usage) (capacity, allocatable corev1.ResourceList) {
	capacity = corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(info.Cores), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(info.Memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(usage.DiskCapacity, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(*config.MaxPods, resource.DecimalSI),
	}
	unavailable := config.Reserved(capacity)
	for size, bytes := range info.HugePages {
		name := resourcename.HugePages(size)
		capacity[name] = *resource.NewQuantity(bytes, resource.BinarySI)
		add(unavailable, corev1.ResourceMemory, *resource.NewQuantity(bytes, resource.BinarySI))
	}
	allocatable = make(corev1.ResourceList, len(capacity))
	for name, quantity := range capacity {
		left := quantity.DeepCopy()
		left.Sub(unavailable[name])
		if left.Sign() < 0 {
			left.Set(0)
		}
		allocatable[name] = left
	}
	return capacity, allocatable
}

// Reserved returns what is withheld from the Pods of a node with the capacity: for the kubelet, for the system, and so that evictions
// come in time. Huge pages, which Manager.Resources counts as unavailable memory, are not part of it.
func (c *Config) Reserved(capacity corev1.ResourceList) corev1.ResourceList {
	reserved := eviction.Reserved(c.Thresholds, capacity)
	for _, list := range []corev1.ResourceList{c.KubeReserved, c.SystemReserved} {
		for name, quantity := range list {
			add(reserved, name, quantity)
		}
	}
	return reserved
}

// CheckReserved returns an error that names each resource of which more is reserved than a node with the capacity has.
func (c *Config) CheckReserved(capacity corev1.ResourceList) error {
	reserved := c.Reserved(capacity)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		if wanted, all := reserved[name], capacity[name]; wanted.Cmp(all) > 0 {
			errs = append(errs, fmt.Errorf("kubeReserved, systemReserved and evictionHard together reserve %s of %s, and the node has %s: reserve less",
				&wanted, name, &all))
		}
	}
	return errors.Join(errs...)
}

func add(list corev1.ResourceList, name corev1.ResourceName, quantity resource.Quantity) {
	sum := list[name]
	sum.Add(quantity)
	list[name] = sum
}

// buildStatus computes the new status of the Node from its current one. Fields of other owners (attached volumes,
// resources of device plugins) are kept.
func buildStatus(config *Config, old *corev1.NodeStatus, o observed, now time.Time) corev1.NodeStatus {
	status := *old.DeepCopy()
	status.Addresses = addresses(config, old.Addresses, &o)
	status.DaemonEndpoints.KubeletEndpoint.Port = o.port

	capacity, allocatable := nodeResources(config, o.info, o.usage)
	maps.Copy(capacity, o.devices.capacity)
	maps.Copy(allocatable, o.devices.allocatable)
	if o.resetExtended {
		for name := range old.Capacity {
			if _, has := capacity[name]; !has && resourcename.IsExtended(name) {
				capacity[name], allocatable[name] = *resource.NewQuantity(0, resource.DecimalSI), *resource.NewQuantity(0, resource.DecimalSI)
			}
		}
	}
	status.Capacity, status.Allocatable = mergeResources(old, capacity, allocatable)

	buildInfo(config, &status, o)
	if o.images != nil {
		status.Images = imageList(o.images, *config.MaxImages)
	}
	if o.volumesOK {
		status.VolumesInUse = o.volumes
	}
	if !o.featuresDropped {
		status.DeclaredFeatures = config.DeclaredFeatures
	}
	status.Conditions = conditions(config, old.Conditions, o, now)
	return status
}

// buildInfo sets what is known of the system and the runtime.
func buildInfo(config *Config, status *corev1.NodeStatus, o observed) {
	info := &status.NodeInfo
	info.MachineID, info.SystemUUID, info.BootID = o.info.MachineID, o.info.SystemUUID, o.info.BootID
	info.KernelVersion, info.OSImage = o.info.Kernel, o.info.OSImage
	info.OperatingSystem, info.Architecture = goruntime.GOOS, goruntime.GOARCH
	info.KubeletVersion, info.KubeProxyVersion = config.Version, ""
	info.Swap = nil
	if o.info.Swap > 0 {
		info.Swap = &corev1.NodeSwapStatus{Capacity: ptr.To(o.info.Swap)}
	}
	if o.version != nil {
		info.ContainerRuntimeVersion = o.version.RuntimeName + "://" + strings.TrimPrefix(o.version.RuntimeVersion, "v")
	} else if info.ContainerRuntimeVersion == "" {
		info.ContainerRuntimeVersion = "Unknown://Unknown"
	}
	if o.runtime == nil {
		return
	}
	status.RuntimeHandlers = nil
	for _, handler := range o.runtime.RuntimeHandlers {
		status.RuntimeHandlers = append(status.RuntimeHandlers, corev1.NodeRuntimeHandler{
			Name: handler.Name,
			Features: &corev1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: ptr.To(handler.GetFeatures().GetRecursiveReadOnlyMounts()),
				UserNamespaces:          ptr.To(handler.GetFeatures().GetUserNamespaces()),
			},
		})
	}
	slices.SortFunc(status.RuntimeHandlers, func(a, b corev1.NodeRuntimeHandler) int {
		return cmp.Compare(a.Name, b.Name)
	})
	if o.runtime.Features != nil {
		status.Features = &corev1.NodeFeatures{
			SupplementalGroupsPolicy: ptr.To(o.runtime.Features.SupplementalGroupsPolicy),
		}
	}
}

// mergeResources returns this kubelet's resources with those that others added. An administrator adds an extended resource to the capacity
// alone: all of it is allocatable, until it is removed from there. Huge page sizes that the machine no longer has are dropped.
func mergeResources(old *corev1.NodeStatus, ownCapacity, ownAllocatable corev1.ResourceList) (capacity, allocatable corev1.ResourceList) {
	capacity, allocatable = ownCapacity.DeepCopy(), ownAllocatable.DeepCopy()
	others := func(list corev1.ResourceList, add func(name corev1.ResourceName, quantity resource.Quantity)) {
		for name, quantity := range list {
			if _, own := ownCapacity[name]; !own && !resourcename.IsHugePages(name) {
				add(name, quantity)
			}
		}
	}
	others(old.Capacity, func(name corev1.ResourceName, quantity resource.Quantity) {
		capacity[name], allocatable[name] = quantity, quantity
	})
	others(old.Allocatable, func(name corev1.ResourceName, quantity resource.Quantity) {
		if _, has := capacity[name]; !has && !resourcename.IsExtended(name) {
			allocatable[name] = quantity
		}
	})
	return capacity, allocatable
}

// imageList returns the largest images that have a name: no Pod can refer to another.
func imageList(images []*runtimeapi.Image, limit int) []corev1.ContainerImage {
	named := func(image *runtimeapi.Image) bool { return len(image.RepoDigests)+len(image.RepoTags) > 0 }
	sorted := slices.DeleteFunc(slices.Clone(images), func(image *runtimeapi.Image) bool { return !named(image) })
	slices.SortStableFunc(sorted, func(a, b *runtimeapi.Image) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(b.Id, a.Id)) // as upstream's kubelet
	})
	if limit >= 0 && len(sorted) > limit {
		sorted = sorted[:limit]
	}
	list := make([]corev1.ContainerImage, 0, len(sorted))
	for _, image := range sorted {
		names := slices.Concat(image.RepoDigests, image.RepoTags)
		list = append(list, corev1.ContainerImage{
			Names:     names[:min(len(names), maxNames)],
			SizeBytes: int64(min(image.Size, 1<<62)),
		})
	}
	return list
}

// conditions computes the conditions. Ready is the last one, as old clients expect; conditions of other owners are
// kept.
func conditions(config *Config, old []corev1.NodeCondition, o observed, now time.Time) []corev1.NodeCondition {
	ours := []corev1.NodeCondition{
		pressureCondition(corev1.NodeMemoryPressure, o.pressure,
			conditionText{"KubeletHasInsufficientMemory", "kubelet has insufficient memory available"},
			conditionText{"KubeletHasSufficientMemory", "kubelet has sufficient memory available"}),
		pressureCondition(corev1.NodeDiskPressure, o.pressure,
			conditionText{"KubeletHasDiskPressure", "kubelet has disk pressure"},
			conditionText{"KubeletHasNoDiskPressure", "kubelet has no disk pressure"}),
		pressureCondition(corev1.NodePIDPressure, o.pressure,
			conditionText{"KubeletHasInsufficientPID", "kubelet has insufficient PID available"},
			conditionText{"KubeletHasSufficientPID", "kubelet has sufficient PID available"}),
		readyCondition(o.notReady),
	}
	timestamp := metav1.NewTime(now)
	var result []corev1.NodeCondition
	for _, condition := range old {
		if !slices.ContainsFunc(ours, func(c corev1.NodeCondition) bool { return c.Type == condition.Type }) {
			result = append(result, condition)
		}
	}
	for _, condition := range ours {
		condition.LastHeartbeatTime, condition.LastTransitionTime = timestamp, timestamp
		if before := findCondition(old, condition.Type); before != nil && before.Status == condition.Status {
			condition.LastTransitionTime = before.LastTransitionTime
		}
		result = append(result, condition)
	}
	return result
}

// conditionText is the reason and the message of a condition.
type conditionText struct{ reason, message string }

// pressureCondition returns one of the conditions. Under pressure its message names the thresholds.
func pressureCondition(kind corev1.NodeConditionType, pressure []eviction.Condition, yes, no conditionText) corev1.NodeCondition {
	for _, condition := range pressure {
		if condition.Type == kind {
			return corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionTrue, Reason: yes.reason, Message: yes.message + ": " + condition.Detail,
			}
		}
	}
	return corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: no.reason, Message: no.message}
}

func readyCondition(notReady []string) corev1.NodeCondition {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady"}
	switch len(notReady) {
	case 0:
		ready.Status, ready.Reason = corev1.ConditionTrue, "KubeletReady"
		ready.Message = "kubelet is posting ready status"
	case 1:
		ready.Message = notReady[0]
	default:
		ready.Message = fmt.Sprintf("[%s]", strings.Join(notReady, ", "))
	}
	return ready
}

func findCondition(list []corev1.NodeCondition, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range list {
		if list[i].Type == kind {
			return &list[i]
		}
	}
	return nil
}

// sameStatus compares two statuses except for heartbeat times and the order of conditions.
func sameStatus(a, b *corev1.NodeStatus) bool {
	return equality.Semantic.DeepEqual(normalized(a), normalized(b))
}

// normalized returns a copy of the status without heartbeat times and with sorted conditions.
func normalized(status *corev1.NodeStatus) *corev1.NodeStatus {
	status = status.DeepCopy()
	for i := range status.Conditions {
		status.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	slices.SortFunc(status.Conditions, func(a, b corev1.NodeCondition) int { return cmp.Compare(a.Type, b.Type) })
	return status
}
