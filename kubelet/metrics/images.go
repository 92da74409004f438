package metrics

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// Images holds the metrics of image pulls, of image garbage collection and of pull records.
type Images struct {
	pulls   *prometheus.HistogramVec
	removed *prometheus.CounterVec
	checks  *prometheus.CounterVec
	ensured *prometheus.CounterVec
}

// NewImages registers the metrics of images.
func NewImages(registry prometheus.Registerer) *Images {
	m := &Images{
		pulls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_image_pull_duration_seconds", Help: "Duration in seconds of image pulls, by image size.",
			Buckets: prometheus.ExponentialBuckets(0.1, 2, 16),
		}, []string{"image_size_in_bytes"}),
		removed: counters("image_garbage_collected_total", "Images removed by garbage collection, by reason: space or age.", "reason"),
		checks:  counters("imagemanager_image_mustpull_checks_total", "Must-pull checks for present images, by result.", "result"),
		ensured: counters("image_manager_ensure_image_requests_total", "Requests for the image of a container or a volume, by pull policy and by "+
			"whether the image was present and had to be pulled.", "present_locally", "pull_policy", "pull_required"),
	}
	registry.MustRegister(m.pulls, m.removed, m.checks, m.ensured)
	return m
}

// ObservePull records one pull of an image of the given size in bytes.
func (m *Images) ObservePull(size uint64, took time.Duration) {
	m.pulls.WithLabelValues(sizeClass(size)).Observe(took.Seconds())
}

// CountRemoved counts an image that garbage collection has removed.
func (m *Images) CountRemoved(reason string) { m.removed.WithLabelValues(reason).Inc() }

// CountCheck counts the result of a must-pull check.
func (m *Images) CountCheck(result string) { m.checks.WithLabelValues(result).Inc() }

// CountRequest counts a request for an image. present and pullRequired are nil if they are not known.
func (m *Images) CountRequest(policy corev1.PullPolicy, present, pullRequired *bool) {
	m.ensured.WithLabelValues(knownOf(present), strings.ToLower(string(policy)), knownOf(pullRequired)).Inc()
}

// knownOf is the value of a label that may not be known.
func knownOf(value *bool) string {
	if value == nil {
		return "unknown"
	}
	return strconv.FormatBool(*value)
}

// RegisterPullRecords registers the numbers of pull intents and pulled records on disk, which counts returns.
func RegisterPullRecords(registry prometheus.Registerer, counts func() (intents, records int)) {
	gauge := func(name, help string, value func(intents, records int) int) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubelet_imagemanager_ondisk_" + name, Help: help},
			func() float64 { return float64(value(counts())) }))
	}
	gauge("pullintents", "Number of image pull intents on disk.", func(intents, _ int) int { return intents })
	gauge("pulledrecords", "Number of image pulled records on disk.", func(_, records int) int { return records })
}

// sizeClasses are the values of the label image_size_in_bytes, each with the size in MiB above which it applies.
var sizeClasses = []struct {
	above uint64
	label string
}{
	{100 << 10, "GT100GB"}, {60 << 10, "60GB-100GB"}, {40 << 10, "40GB-60GB"}, {30 << 10, "30GB-40GB"},
	{20 << 10, "20GB-30GB"}, {10 << 10, "10GB-20GB"}, {5 << 10, "5GB-10GB"}, {1 << 10, "1GB-5GB"}, {500, "500MB-1GB"},
	{100, "100MB-500MB"}, {10, "10MB-100MB"}, {0, "0-10MB"},
}

// sizeClass returns the label of a size in bytes; 0 is an unknown size.
func sizeClass(size uint64) string {
	for _, class := range sizeClasses {
		if size > class.above<<20 {
			return class.label
		}
	}
	return "N/A"
}
