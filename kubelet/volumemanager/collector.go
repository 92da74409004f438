package volumemanager

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/volume"
)

const (
	// scrapeTimeout bounds the measurement of all volumes. A volume that takes longer, such as one of an unreachable
	// file server, is missing from that scrape.
	scrapeTimeout = 5 * time.Second
	// maxConcurrentScrapes is how many volumes are measured at once.
	maxConcurrentScrapes = 8
)

// volumeGauge is one of the kubelet_volume_stats metrics.
type volumeGauge struct {
	desc  *prometheus.Desc
	value func(*volume.Stats) int64
}

// Collector collects the number of volumes and the usage of the volumes of claims, under the metric names of the
// kubelet.
type Collector struct {
	manager *Manager
	gauges  []volumeGauge
}

var _ prometheus.Collector = (*Collector)(nil)

var blockedDesc = prometheus.NewDesc("berth_volume_measurements_blocked",
	"Number of volumes whose file server or driver does not respond to a measurement", nil, nil)

var abnormalDesc = prometheus.NewDesc("kubelet_volume_stats_health_status_abnormal",
	"1 if the driver of the volume reports that something is wrong with it, 0 if nothing is", []string{"namespace", "persistentvolumeclaim"}, nil)

// NewCollector returns the collector of a Manager's volumes.
func NewCollector(manager *Manager) *Collector {
	gauge := func(name, help string, value func(*volume.Stats) int64) volumeGauge {
		return volumeGauge{value: value, desc: prometheus.NewDesc("kubelet_volume_stats_"+name, help,
			[]string{"namespace", "persistentvolumeclaim"}, nil)}
	}
	return &Collector{manager: manager, gauges: []volumeGauge{
		gauge("capacity_bytes", "Capacity in bytes of the volume", func(s *volume.Stats) int64 { return s.Capacity }),
		gauge("available_bytes", "Number of available bytes in the volume",
			func(s *volume.Stats) int64 { return s.Available }),
		gauge("used_bytes", "Number of used bytes in the volume", func(s *volume.Stats) int64 { return s.Used }),
		gauge("inodes", "Maximum number of inodes in the volume", func(s *volume.Stats) int64 { return s.Inodes }),
		gauge("inodes_free", "Number of free inodes in the volume",
			func(s *volume.Stats) int64 { return s.InodesFree }),
		gauge("inodes_used", "Number of used inodes in the volume",
			func(s *volume.Stats) int64 { return s.InodesUsed }),
	}}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, gauge := range c.gauges {
		out <- gauge.desc
	}
	out <- totalVolumesDesc
	out <- blockedDesc
	out <- abnormalDesc
}

// claimKey names a claim.
type claimKey struct{ namespace, name string }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	for by, n := range c.manager.countVolumes() {
		out <- prometheus.MustNewConstMetric(totalVolumesDesc, prometheus.GaugeValue, float64(n), by.plugin, by.state)
	}
	for claim, abnormal := range c.manager.claimHealth() {
		out <- prometheus.MustNewConstMetric(abnormalDesc, prometheus.GaugeValue, abnormal, claim.namespace, claim.name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	stats := c.manager.claimStats(ctx)
	out <- prometheus.MustNewConstMetric(blockedDesc, prometheus.GaugeValue, float64(c.manager.measurements.blocked()))
	for claim, stats := range stats {
		for _, gauge := range c.gauges {
			out <- prometheus.MustNewConstMetric(gauge.desc, prometheus.GaugeValue, float64(gauge.value(stats)),
				claim.namespace, claim.name)
		}
	}
}

// claimStats measures the volumes of all claims, each once, however many Pods use it, until ctx ends.
func (m *Manager) claimStats(ctx context.Context) map[claimKey]*volume.Stats {
	m.mu.Lock()
	volumes := make(map[claimKey]*mountedVolume)
	for _, state := range m.pods {
		for _, mounted := range state.mounted {
			if claim := mounted.Spec.PVC; claim != nil {
				volumes[claimKey{claim.Namespace, claim.Name}] = mounted
			}
		}
	}
	m.mu.Unlock()
	var (
		mu    sync.Mutex // guards all
		all   = make(map[claimKey]*volume.Stats, len(volumes))
		group errgroup.Group
	)
	group.SetLimit(maxConcurrentScrapes)
	for claim, mounted := range volumes {
		group.Go(contain.Func("volumemanager.claimStats", claim.namespace+"/"+claim.name, func() error {
			stats, err := m.volumeStats(ctx, mounted)
			if err != nil {
				m.logger.Debug("failed to measure the volume of a claim", "namespace", claim.namespace, "claim", claim.name,
					"error", err)
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if stats != nil {
				all[claim] = stats
			}
			return nil
		}))
	}
	_ = group.Wait() // the functions above return nil
	return all
}
