package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// podStarts holds the metrics of the Pods and containers that start.
type podStarts struct {
	pods, podErrors             prometheus.Counter
	userPods, userPodErrors     prometheus.Counter // of Pods with user namespaces
	containers, containerErrors *prometheus.CounterVec
	duration, total, size       prometheus.Histogram
	imageVolumes                imageVolumes
}

func newPodStarts(registry prometheus.Registerer) *podStarts {
	s := &podStarts{
		pods: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_total", Help: "Cumulative number of pods started",
		}),
		podErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_errors_total", Help: "Cumulative number of errors when starting pods",
		}),
		userPods: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_user_namespaced_pods_total", Help: "Cumulative number of pods with user namespaces started",
		}),
		userPodErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_user_namespaced_pods_errors_total",
			Help: "Cumulative number of errors when starting pods with user namespaces, or their containers",
		}),
		containers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_total", Help: "Cumulative number of containers started",
		}, []string{"container_type"}),
		containerErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_errors_total", Help: "Cumulative number of errors when starting containers",
		}, []string{"container_type", "code"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubelet_pod_start_duration_seconds",
			Help:    "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
		}),
		total: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubelet_pod_start_total_duration_seconds",
			Help:    "Duration in seconds from the pod's creation to the pod starting to run, with pulls and init containers",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 16),
		}),
		size:         histogram("containers_per_pod_count", "The number of containers per pod, without init containers.", prometheus.ExponentialBuckets(1, 2, 5)),
		imageVolumes: newImageVolumes(registry),
	}
	registry.MustRegister(s.pods, s.podErrors, s.userPods, s.userPodErrors, s.containers, s.containerErrors, s.duration, s.total, s.size)
	return s
}

// imageVolumes holds the metrics of volumes that are images.
type imageVolumes struct{ requested, mounted, errors prometheus.Counter }

func newImageVolumes(registry prometheus.Registerer) imageVolumes {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_image_volume_" + name, Help: help})
	}
	v := imageVolumes{
		requested: counter("requested_total", "Number of requested image volumes."),
		mounted:   counter("mounted_succeed_total", "Number of successful image volume mounts."),
		errors:    counter("mounted_errors_total", "Number of failed image volume mounts."),
	}
	registry.MustRegister(v.requested, v.mounted, v.errors)
	return v
}

// ImageVolumes implements podworker.Metrics.
func (s *podStarts) ImageVolumes(volumes, mounts int, mounted bool) {
	s.imageVolumes.requested.Add(float64(volumes))
	if mounted {
		s.imageVolumes.mounted.Add(float64(mounts))
	} else {
		s.imageVolumes.errors.Add(float64(mounts))
	}
}

// containerTypes are the values of the label container_type.
var containerTypes = map[podutil.Kind]string{
	podutil.Init: "init_container", podutil.Regular: "container",
	podutil.Ephemeral: "ephemeral_container",
}

// SandboxStarted implements podworker.Metrics.
func (s *podStarts) SandboxStarted(pod *corev1.Pod, first bool, err error) {
	if podutil.HasUserNamespace(pod) {
		s.userPods.Inc() // each attempt counts, as in the Kubernetes kubelet
		if err != nil {
			s.userPodErrors.Inc()
		}
	}
	switch {
	case err != nil:
		s.podErrors.Inc()
	case first:
		s.pods.Inc()
		s.size.Observe(float64(len(pod.Spec.Containers)))
	}
}

// ContainerStarted implements podworker.Metrics.
func (s *podStarts) ContainerStarted(pod *corev1.Pod, kind podutil.Kind, reason string, err error) {
	if err != nil {
		if podutil.HasUserNamespace(pod) {
			s.userPodErrors.Inc()
		}
		s.containerErrors.WithLabelValues(containerTypes[kind], reason).Inc()
		return
	}
	s.containers.WithLabelValues(containerTypes[kind]).Inc()
}

// observeRunning records how long a Pod took to start running.
func (s *podStarts) observeRunning(sinceSeen, sinceCreated time.Duration) {
	s.duration.Observe(sinceSeen.Seconds())
	s.total.Observe(sinceCreated.Seconds())
}
