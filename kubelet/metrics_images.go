package kubelet

import (
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// imageTimes are the metrics of images, under upstream's names.
type imageTimes struct {
	pulls   *prometheus.HistogramVec
	removed *prometheus.CounterVec
	checks  *prometheus.CounterVec
}

func newImageTimes(registry *prometheus.Registry) *imageTimes {
	t := &imageTimes{
		pulls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_image_pull_duration_seconds", Help: "How long pulls of images took, by the size of the image.",
			Buckets: prometheus.ExponentialBuckets(0.1, 2, 16),
		}, []string{"image_size_in_bytes"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_image_garbage_collected_total", Help: "Images that were removed for the sake of space, or for their age.",
		}, []string{"reason"}),
	}
	t.checks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_imagemanager_image_mustpull_checks_total",
		Help: "Questions whether a Pod may use an image that is present, by what came of them.",
	}, []string{"result"})
	registry.MustRegister(t.pulls, t.removed, t.checks)
	return t
}

// observe is images.Deps.Observe.
func (t *imageTimes) observe(size uint64, took time.Duration) {
	t.pulls.WithLabelValues(sizeClass(size)).Observe(took.Seconds())
}

// count is images.CollectorDeps.Count.
func (t *imageTimes) count(reason string) { t.removed.WithLabelValues(reason).Inc() }

// checked is ledger.Deps.Count.
func (t *imageTimes) checked(result string) { t.checks.WithLabelValues(result).Inc() }

// remember makes what knows the credentials of images.
func (k *Kubelet) remember() (err error) {
	k.ledger, err = pullrecords.New(pullrecords.Deps{CountCheck: k.imageTimes.checked, Clock: k.deps.Clock, Logger: k.deps.Logger.With("room", "images")}, pullrecords.Config{
		Dir: filepath.Join(k.cfg.RootDir, "image_manager"), Policy: k.cfg.ImageVerification, Allowlist: k.cfg.NotVerified,
	})
	if err != nil {
		return err
	}
	kept := func(name, help string, count func(intents, records int) int) {
		k.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			return float64(count(k.ledger.Counts()))
		}))
	}
	kept("kubelet_imagemanager_ondisk_pullintents", "Pulls of images whose end is not noted yet.",
		func(intents, _ int) int { return intents })
	kept("kubelet_imagemanager_ondisk_pulledrecords", "Images of which it is noted with which credentials they were pulled.",
		func(_, records int) int { return records })
	return nil
}

// sizeClasses are upstream's words for sizes of images, each with the size in MiB that it begins above.
var sizeClasses = []struct {
	above uint64
	label string
}{
	{100 << 10, "GT100GB"}, {60 << 10, "60GB-100GB"}, {40 << 10, "40GB-60GB"}, {30 << 10, "30GB-40GB"},
	{20 << 10, "20GB-30GB"}, {10 << 10, "10GB-20GB"}, {5 << 10, "5GB-10GB"}, {1 << 10, "1GB-5GB"}, {500, "500MB-1GB"},
	{100, "100MB-500MB"}, {10, "10MB-100MB"}, {0, "0-10MB"},
}

// sizeClass is upstream's word for the size in bytes; zero is a size that is not known.
func sizeClass(size uint64) string {
	for _, class := range sizeClasses {
		if size > class.above<<20 {
			return class.label
		}
	}
	return "N/A"
}
