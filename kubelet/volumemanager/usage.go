package volumemanager

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/internal/diskusage"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/projectquota"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/volume"
)

const (
	// defaultUsageMaxAge is the default of Config.UsageMaxAge.
	defaultUsageMaxAge = time.Minute
	// usageCostFactor bounds the cost of measuring file by file: the result is used for at least so many times as long as it took.
	usageCostFactor = 20
)

// lastUsage is the last measurement of a volume on the node's disk. It is safe for concurrent use.
type lastUsage struct {
	mu   sync.Mutex // guards the fields; it is held during a measurement, so that there is one at a time
	used diskusage.Usage
	at   time.Time // zero if there is none
	took time.Duration
	// reported is what was reported last, nil if nothing was. It is not modified any more, and is read during a measurement.
	reported atomic.Pointer[volume.Stats]
}

// onNodeDisk reports whether the volume occupies the node's own disk.
func (v *mountedVolume) onNodeDisk() bool {
	return v.Spec.PV == nil && v.Spec.Volume != nil && eviction.IsOnNodeDisk(v.Spec.Volume)
}

// measureUsage returns what the volume occupies: from the kernel if it counts the volume's files; else by reading the size of each file,
// unless a measurement is younger than maxAge.
func (m *Manager) measureUsage(ctx context.Context, v *mountedVolume, maxAge time.Duration) (diskusage.Usage, error) {
	if v.Spec.Volume.EmptyDir != nil && podutil.HasUserNamespace(v.request.Pod) {
		began := m.clock.Now()
		if used, counted, err := projectquota.Usage(v.Path); err == nil && counted {
			m.measurements.observe(sourceQuota, m.clock.Since(began))
			return used, nil
		}
	}
	u := v.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	began := m.clock.Now()
	if maxAge > 0 && !u.at.IsZero() && began.Sub(u.at) < max(maxAge, usageCostFactor*u.took) {
		return u.used, nil
	}
	used, err := diskusage.Measure(ctx, v.Path, 0)
	took := m.clock.Since(began)
	m.measurements.observe(sourceFiles, took)
	if err != nil {
		return used, err
	}
	u.used, u.at, u.took = used, m.clock.Now(), took
	return used, nil
}
