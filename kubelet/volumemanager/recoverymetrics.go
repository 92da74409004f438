package volumemanager

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// recoveryMetrics count the volumes that an earlier process has left, and the Pods that CleanupOrphans removes.
type recoveryMetrics struct {
	recovered, recoverErrors prometheus.Counter
	cleaned, cleanErrors     prometheus.Counter
	orphans, orphanErrors    prometheus.Gauge

	mu sync.Mutex // guards unrecovered
	// unrecovered are the directories of the volumes that could not be recovered.
	unrecovered map[string]struct{}
}

func newRecoveryMetrics() *recoveryMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_" + name, Help: help})
	}
	return &recoveryMetrics{
		unrecovered:   map[string]struct{}{},
		recovered:     counter("reconstruct_volume_operations_total", "Volumes found on disk at the start, with those that could not be recovered."),
		recoverErrors: counter("reconstruct_volume_operations_errors_total", "Volumes found on disk at the start that could not be recovered."),
		cleaned: counter("force_cleaned_failed_volume_operations_total",
			"Attempts to unmount a volume that could not be recovered at the start, with those that failed."),
		cleanErrors: counter("force_cleaned_failed_volume_operation_errors_total",
			"Failed attempts to unmount a volume that could not be recovered at the start."),
		orphans: gauge("orphan_pod_cleaned_volumes",
			"Pods that no longer exist and were found on disk by the last cleanup, with those that it could not remove."),
		orphanErrors: gauge("orphan_pod_cleaned_volumes_errors", "Pods that no longer exist and that the last cleanup could not remove."),
	}
}

// collectors returns the metrics.
func (m *recoveryMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.recovered, m.recoverErrors, m.cleaned, m.cleanErrors, m.orphans, m.orphanErrors}
}

// countRecovered counts a volume that was found at the start. err says why it could not be recovered.
func (m *recoveryMetrics) countRecovered(dir string, err error) {
	m.recovered.Inc()
	if err == nil {
		return
	}
	m.recoverErrors.Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unrecovered[dir] = struct{}{}
}

// countCleaned counts an attempt to unmount a volume that no Pod has used since the start, if it could not be recovered then.
func (m *recoveryMetrics) countCleaned(dir string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.unrecovered[dir]; !ok {
		return
	}
	m.cleaned.Inc()
	if err != nil {
		m.cleanErrors.Inc()
		return
	}
	delete(m.unrecovered, dir)
}

// setOrphans records the result of a cleanup: the number of Pods that it found, and those of its errors that are not nil.
func (m *recoveryMetrics) setOrphans(found int, errs []error) {
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	m.orphans.Set(float64(found))
	m.orphanErrors.Set(float64(failed))
}

// Collectors returns the metrics of what the Manager does, beside those of its volumes (see NewCollector).
func (m *Manager) Collectors() []prometheus.Collector {
	all := append(m.seLinux.collectors(), m.recovery.collectors()...)
	return append(all, m.measurements.durations)
}
