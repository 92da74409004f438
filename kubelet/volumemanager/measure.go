package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/volume"
)

const (
	// statsWait is how long a caller waits for the measurement of one volume, from its beginning on. One that takes
	// longer, such as that of an unreachable file server, is omitted until it ends.
	statsWait = 2 * time.Second
	// statsTimeout bounds the call of a plugin that measures a volume.
	statsTimeout = time.Minute
)

// errNoResponse is that of a measurement that takes longer than statsWait.
var errNoResponse = errors.New("its file server or driver has not responded")

// measurements are the measurements of volumes that are under way, at most one for each volume: the kernel's call for an
// unreachable file server cannot be cancelled and holds a thread. It is safe for concurrent use.
type measurements struct {
	mu    sync.Mutex
	inUse map[string]*measurement // by volume

	durations *prometheus.HistogramVec // by what was measured with
}

// measurement is one measurement. stats and err are valid when done is closed.
type measurement struct {
	began time.Time
	done  chan struct{}
	stats *volume.Stats
	err   error
}

// The values of the label metric_source; for a volume of a CSI driver it is the driver's name.
const (
	sourceFileSystem = "statfs"
	sourceFiles      = "du"
	sourceQuota      = "fsquota"
	sourceDevice     = "block"
)

func newMeasurements() *measurements {
	return &measurements{inUse: map[string]*measurement{}, durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubelet_volume_metric_collection_duration_seconds", Help: "Duration in seconds of measuring the usage of a volume, by " +
			"what it is measured with.", Buckets: prometheus.DefBuckets,
	}, []string{"metric_source"})}
}

// observe records the duration of one measurement.
func (m *measurements) observe(source string, took time.Duration) {
	m.durations.WithLabelValues(source).Observe(took.Seconds())
}

// measure returns the result of fn for the volume, or an error once that takes longer than statsWait. While a
// measurement of the volume is under way, its result is that of all callers.
func (m *measurements) measure(ctx context.Context, key string, fn func(context.Context) (*volume.Stats, error)) (*volume.Stats, error) {
	m.mu.Lock()
	one := m.inUse[key]
	if one == nil {
		one = &measurement{began: time.Now(), done: make(chan struct{})}
		m.inUse[key] = one
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), statsTimeout)
		go func() {
			defer cancel()
			one.err = contain.Do("volumemanager.measure", key, func() (err error) {
				one.stats, err = fn(detached)
				return err
			})
			m.mu.Lock()
			delete(m.inUse, key)
			m.mu.Unlock()
			close(one.done)
		}()
	}
	m.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, one.began.Add(statsWait))
	defer cancel()
	select {
	case <-one.done:
		return one.stats, one.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w for %s: check that it is reachable", errNoResponse, time.Since(one.began).Round(time.Second))
	}
}

// blocked returns how many measurements take longer than statsWait.
func (m *measurements) blocked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, one := range m.inUse {
		if time.Since(one.began) > statsWait {
			n++
		}
	}
	return n
}

// measuredVolume identifies a volume: the same one in all Pods that use it.
func measuredVolume(mounted *mountedVolume) string {
	if pv := mounted.Spec.PV; pv != nil {
		return "persistentvolume/" + pv.Name
	}
	return mounted.Path
}
