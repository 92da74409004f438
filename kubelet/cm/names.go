package cm

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/qos"
)

// Driver is what creates the cgroups.
type Driver string

const (
	// DriverCgroupfs creates directories in the kernel's file system.
	DriverCgroupfs Driver = "cgroupfs"
	// DriverSystemd creates systemd slices. It is right where systemd manages the hierarchy.
	DriverSystemd Driver = "systemd"
)

// ParseDriver parses a driver's name.
func ParseDriver(name string) (Driver, error) {
	switch driver := Driver(name); driver {
	case DriverCgroupfs, DriverSystemd:
		return driver, nil
	default:
		return "", fmt.Errorf("cgroupDriver %q: want %s or %s", name, DriverCgroupfs, DriverSystemd)
	}
}

const (
	kubepodsName = "kubepods"
	podPrefix    = "pod"
)

// cgroupName is the path of a cgroup from the root of the hierarchy, one element a level.
type cgroupName []string

// parseCgroupName splits a path like "/berth-1a2b" into its elements.
func parseCgroupName(root string) cgroupName {
	var name cgroupName
	for element := range strings.SplitSeq(root, "/") {
		if element != "" {
			name = append(name, element)
		}
	}
	return name
}

func (n cgroupName) child(elements ...string) cgroupName {
	return append(n[:len(n):len(n)], elements...)
}

// cgroupfs returns the cgroup's path as the cgroupfs driver names it.
func (n cgroupName) cgroupfs() string {
	return "/" + path.Join(n...)
}

// systemd returns the cgroup's path as the systemd driver names it. A slice has the names of all above it, separated by
// "-": [kubepods burstable pod1-2] is /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice.
func (n cgroupName) systemd() string {
	whole, slice := "/", ""
	for _, element := range n {
		element = strings.ReplaceAll(element, "-", "_")
		if slice != "" {
			element = slice + "-" + element
		}
		slice = element
		whole = path.Join(whole, slice+".slice")
	}
	return whole
}

func (n cgroupName) path(driver Driver) string {
	if driver == DriverSystemd {
		return n.systemd()
	}
	return n.cgroupfs()
}

// qosCgroups are the elements below kubepods that contain the Pods of each class.
var qosCgroups = map[corev1.PodQOSClass][]string{
	corev1.PodQOSGuaranteed: nil,
	corev1.PodQOSBurstable:  {"burstable"},
	corev1.PodQOSBestEffort: {"besteffort"},
}

// qosCgroup returns the cgroup that contains the Pods of a class.
func (m *Manager) qosCgroup(class corev1.PodQOSClass) cgroupName {
	return m.root.child(kubepodsName).child(qosCgroups[class]...)
}

// podCgroup returns the Pod's cgroup.
func (m *Manager) podCgroup(pod *corev1.Pod) cgroupName {
	return m.qosCgroup(qos.Class(pod)).child(podPrefix + string(pod.UID))
}

// ContainerCgroups returns the names that a container's cgroup may have below that of its Pod: the container's ID, and what containerd and
// CRI-O make of it for systemd.
func ContainerCgroups(id string) []string {
	return []string{id, "cri-containerd-" + id + ".scope", "crio-" + id + ".scope"}
}

// idPattern matches the IDs that containerd and CRI-O give to containers.
var idPattern = regexp.MustCompile("^[0-9a-f]{64}$")

// containerID parses a container's ID from the name of its cgroup, one of ContainerCgroups.
func containerID(name string) (id string, ok bool) {
	id = strings.TrimSuffix(name, ".scope")
	id = strings.TrimPrefix(strings.TrimPrefix(id, "cri-containerd-"), "crio-")
	return id, idPattern.MatchString(id)
}

// podUID parses the Pod's UID from the last element of its cgroup's path.
func (m *Manager) podUID(element string) (types.UID, bool) {
	if m.Driver() == DriverSystemd {
		name, isSlice := strings.CutSuffix(element, ".slice")
		uid, isPod := strings.CutPrefix(name[strings.LastIndex(name, "-")+1:], podPrefix)
		return types.UID(strings.ReplaceAll(uid, "_", "-")), isSlice && isPod && uid != ""
	}
	uid, isPod := strings.CutPrefix(element, podPrefix)
	return types.UID(uid), isPod && uid != ""
}
