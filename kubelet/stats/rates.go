package stats

import (
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// rateWindow is the time over which a rate is taken at least, as soon as there is a reading that old. What a Pod uses within a second says
// little: it may sleep in that one.
const rateWindow = 10 * time.Second

// cpuReading is a CPU time at an instant.
type cpuReading struct {
	at    time.Time
	nanos uint64
}

// cpuRates computes how much CPU time is used from the readings of those who ask. It is safe for concurrent use.
type cpuRates struct {
	mu   sync.Mutex // guards last
	last map[string]cpuReadings
}

// cpuReadings are two readings, rateWindow apart at least. older is zero until there are two.
type cpuReadings struct{ older, newer cpuReading }

// observe adds a reading, and returns the nanoseconds used per second since an earlier one; nil if there is none, or if the CPU time was
// counted anew since.
func (r *cpuRates) observe(key string, now cpuReading) *uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]cpuReadings{}
	}
	known := r.last[key]
	base := known.older
	if base.at.IsZero() || now.at.Sub(known.newer.at) >= rateWindow {
		base = known.newer
	}
	switch {
	case known.newer.at.IsZero() || now.nanos < known.newer.nanos:
		r.last[key] = cpuReadings{newer: now}
		return nil
	case now.at.Sub(known.newer.at) >= rateWindow:
		r.last[key] = cpuReadings{older: known.newer, newer: now}
	}
	past := now.at.Sub(base.at)
	if past <= 0 {
		return nil
	}
	rate := uint64(float64(now.nanos-base.nanos) / past.Seconds())
	return &rate
}

// cpuStats converts the CPU time of a Pod or container. Its rate is that of the readings here, where there are
// such: containerd's is of one second by default.
func (r *cpuRates) cpuStats(id string, u *runtimeapi.CpuUsage) *statsapi.CPUStats {
	if u == nil {
		return nil
	}
	s := &statsapi.CPUStats{
		Time: timestamp(u.Timestamp), UsageNanoCores: optionalUint(u.UsageNanoCores),
		UsageCoreNanoSeconds: optionalUint(u.UsageCoreNanoSeconds), PSI: psiStats(u.Psi),
	}
	if s.UsageCoreNanoSeconds != nil {
		if rate := r.observe(id, cpuReading{at: s.Time.Time, nanos: *s.UsageCoreNanoSeconds}); rate != nil {
			s.UsageNanoCores = rate
		}
	}
	return s
}

// keepOnly drops the readings of all but these Pods and their containers. Whoever measures Pods calls it, so that none stay of what has ended.
func (r *cpuRates) keepOnly(pods []*runtimeapi.PodSandboxStats) {
	keys := map[string]bool{}
	for _, pod := range pods {
		keys[pod.GetAttributes().GetMetadata().GetUid()] = true
		for _, c := range pod.GetLinux().GetContainers() {
			keys[c.GetAttributes().GetId()] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.last {
		if !keys[key] {
			delete(r.last, key)
		}
	}
}
