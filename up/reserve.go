package up

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/util/oom"
	"github.com/berth-dev/berth/up/kubeletfile"
)

const (
	// DefaultPodPidsLimit is the maximum number of processes of a Pod: one Pod cannot take all that the machine can have.
	DefaultPodPidsLimit = 4096
	// DefaultOOMScoreAdj is the oom_score_adj of the cluster's own processes: the kernel ends any Pod before them.
	DefaultOOMScoreAdj = -999
	// ReservedPIDs is the resource name of process IDs in reservations.
	ReservedPIDs = "pid"
)

// What is reserved for the cluster's own processes, unless the user says otherwise: so much, but at most the given part of
// what the machine has.
var (
	reservedMemory  = reservation{amount: 512 << 20, part: 4}
	reservedStorage = reservation{amount: 1 << 30, part: 10}
	reservedPIDs    = reservation{amount: 1000, part: 10}
)

type reservation struct{ amount, part int64 }

func (r reservation) of(capacity int64) resource.Quantity {
	return *resource.NewQuantity(min(r.amount, capacity/r.part), resource.BinarySI)
}

// defaultReservation returns what is reserved on this machine, with the kubelet's directory, whose file system is the ephemeral
// storage. What cannot be measured is not reserved.
func defaultReservation(kubeletDir string) corev1.ResourceList {
	out := corev1.ResourceList{}
	var machine unix.Sysinfo_t
	if unix.Sysinfo(&machine) == nil {
		out[corev1.ResourceMemory] = reservedMemory.of(int64(machine.Totalram) * int64(machine.Unit))
	}
	var fs unix.Statfs_t
	if unix.Statfs(kubeletDir, &fs) == nil {
		out[corev1.ResourceEphemeralStorage] = reservedStorage.of(int64(fs.Blocks) * fs.Bsize)
	}
	if content, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil {
		if most, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64); err == nil {
			out[ReservedPIDs] = reservedPIDs.of(most)
		}
	}
	return out
}

// ResourceConfig says which resources of the machine Pods may use.
type ResourceConfig struct {
	// KubeReserved are the resources of the cluster's own processes, by cpu, memory, ephemeral-storage and pid; nil for an amount
	// that fits the machine. SystemReserved are those of the machine's other processes.
	KubeReserved, SystemReserved map[string]string
	// PodPidsLimit is the maximum number of processes of a Pod; no limit if negative, DefaultPodPidsLimit if zero.
	PodPidsLimit int64
	// SwapBehavior says which Pods may use swap; none if empty.
	SwapBehavior string
	// OOMScoreAdj is the oom_score_adj of the cluster's own processes; DefaultOOMScoreAdj if nil.
	OOMScoreAdj *int
}

// complete fills in the defaults and validates the values.
func (r *ResourceConfig) complete() error {
	if r.PodPidsLimit == 0 {
		r.PodPidsLimit = DefaultPodPidsLimit
	}
	if r.OOMScoreAdj == nil {
		score := DefaultOOMScoreAdj
		r.OOMScoreAdj = &score
	}
	if score := *r.OOMScoreAdj; score < oom.MinScore || score > oom.MaxScore {
		return fmt.Errorf("--oom-score-adj %d: not between %d and %d", score, oom.MinScore, oom.MaxScore)
	}
	if err := cm.SwapBehavior(r.SwapBehavior).Validate(); err != nil {
		return fmt.Errorf("--swap-behavior: %w", err)
	}
	if _, err := cm.ParseReserved("--kube-reserved", r.KubeReserved); err != nil {
		return err
	}
	_, err := cm.ParseReserved("--system-reserved", r.SystemReserved)
	return err
}

// enforcement returns what is reserved of this machine.
func (l Layout) enforcement() (cm.Enforcement, error) {
	own, err := cm.ParseReserved("--kube-reserved", l.Resources.KubeReserved)
	if err != nil {
		return cm.Enforcement{}, err
	}
	if l.Resources.KubeReserved == nil {
		own = defaultReservation(l.KubeletDir())
	}
	system, err := cm.ParseReserved("--system-reserved", l.Resources.SystemReserved)
	return cm.Enforcement{KubeReserved: own, SystemReserved: system}, err
}

// applyKubeletConfig sets what the user's KubeletConfiguration says.
func (l Layout) applyKubeletConfig(to *agent.Config) error {
	if l.KubeletConfig == "" {
		return nil
	}
	file, err := kubeletfile.Read(l.KubeletConfig)
	if err != nil {
		return fmt.Errorf("--kubelet-config: %w", err)
	}
	file.Apply(to)
	return nil
}

// spareFromOOM sets the oom_score_adj of this process, which its children inherit. A machine that does not permit it works
// without.
func (c *Cluster) spareFromOOM() {
	if err := oom.NewOOMAdjuster().ApplyOOMScoreAdj(0, *c.Resources.OOMScoreAdj); err != nil {
		c.logger.Warn("the kernel may end the cluster's own processes before Pods when memory runs out", "error", err)
	}
}
