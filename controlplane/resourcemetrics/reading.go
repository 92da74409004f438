package resourcemetrics

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// cachedWindow is the time over which upstream's kubelet itself measures a rate, for readings that it has not renewed since the last.
const cachedWindow = 10 * time.Second

// counters are what a kubelet reports of a node or of a container.
type counters struct {
	at      time.Time     // when the kubelet read them
	started time.Time     // of a container; zero if unknown
	cpu     time.Duration // used since the start
	cores   *uint64       // the rate that the kubelet reports, in nanocores; nil if it reports none
	memory  uint64        // working set, in bytes
}

// podKey names a Pod in a reading.
type podKey struct{ namespace, name string }

type podCounters struct {
	uid        types.UID
	containers map[string]counters
}

// reading is what a kubelet reported at one time.
type reading struct {
	taken time.Time
	node  *counters // nil if the kubelet does not report them
	pods  map[podKey]podCounters
}

// newReading converts a kubelet's summary. A Pod that lacks the counters of a container, which is only starting, is omitted.
func newReading(summary *statsapi.Summary, taken time.Time) *reading {
	r := &reading{taken: taken, pods: make(map[podKey]podCounters, len(summary.Pods))}
	if node, ok := countersOf(summary.Node.CPU, summary.Node.Memory, summary.Node.StartTime.Time); ok {
		r.node = &node
	}
	for i := range summary.Pods {
		s := &summary.Pods[i]
		pod := podCounters{uid: types.UID(s.PodRef.UID), containers: make(map[string]counters, len(s.Containers))}
		complete := len(s.Containers) > 0
		for j := range s.Containers {
			c := &s.Containers[j]
			one, ok := countersOf(c.CPU, c.Memory, c.StartTime.Time)
			complete = complete && ok
			pod.containers[c.Name] = one
		}
		if complete {
			r.pods[podKey{s.PodRef.Namespace, s.PodRef.Name}] = pod
		}
	}
	return r
}

func countersOf(cpu *statsapi.CPUStats, memory *statsapi.MemoryStats, started time.Time) (counters, bool) {
	if cpu == nil || memory == nil || cpu.UsageCoreNanoSeconds == nil || memory.WorkingSetBytes == nil {
		return counters{}, false
	}
	return counters{
		at: cpu.Time.Time, started: started, cpu: time.Duration(*cpu.UsageCoreNanoSeconds), cores: cpu.UsageNanoCores, memory: *memory.WorkingSetBytes,
	}, true
}

// usage is what a node or container used at the end of a window of time.
type usage struct {
	at        time.Time
	window    time.Duration
	nanoCores int64
	memory    uint64
}

// usageSince computes the usage between two readings of the same node or container; before is nil if the first did not have
// it, because it has started since. It returns false while there is nothing to compute a rate from.
func usageSince(before *counters, now counters) (usage, bool) {
	u := usage{at: now.at, memory: now.memory}
	used := now.cpu
	switch {
	case before != nil && now.cpu >= before.cpu && now.at.After(before.at):
		used, u.window = now.cpu-before.cpu, now.at.Sub(before.at)
	case before != nil && now.cpu >= before.cpu: // the kubelet has not read them again
		if now.cores == nil {
			return usage{}, false
		}
		u.window, u.nanoCores = cachedWindow, int64(*now.cores)
		return u, true
	case !now.started.IsZero() && now.at.After(now.started): // it has started or restarted since
		u.window = now.at.Sub(now.started)
	default:
		return usage{}, false
	}
	u.nanoCores = int64(float64(used) / u.window.Seconds())
	return u, true
}
