package metrics

import (
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/version"
)

// Feature is a feature gate of Kubernetes with its stage, empty for one that is generally available, and its state.
type Feature struct {
	Name, Stage string
	Enabled     bool
}

// RegisterBuild registers what this kubelet is: its version, the version of Kubernetes that it behaves as, and its features.
// None of it changes while the process runs.
func RegisterBuild(registry prometheus.Registerer, features []Feature) {
	parts := strings.SplitN(strings.TrimPrefix(version.Kubernetes, "v"), ".", 3)
	minor := parts[0] + "." + parts[1]
	fixedGauge(registry, "kubernetes_build_info", "The version of the kubelet. The value is always 1.", prometheus.Labels{
		"major": parts[0], "minor": parts[1], "git_version": version.Kubelet(), "git_commit": version.Commit, "git_tree_state": "",
		"build_date": "", "go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
	})
	fixedGauge(registry, "version_info", "The version of Kubernetes that the component behaves as. The value is always 1.", prometheus.Labels{
		"component": "kubelet", "binary": minor, "emulation": minor, "min_compat": minor,
	})
	enabled := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_feature_enabled", Help: "1 for each feature gate of Kubernetes that is on in this kubelet, 0 for the others, with its stage.",
	}, []string{"name", "stage"})
	for _, feature := range features {
		value := 0.0
		if feature.Enabled {
			value = 1
		}
		enabled.WithLabelValues(feature.Name, feature.Stage).Set(value)
	}
	registry.MustRegister(enabled)
}

// RegisterProvider registers what the metrics of containers are read from: the kernel by this process, "cadvisor", or the
// container runtime, "cri".
func RegisterProvider(registry prometheus.Registerer, fromRuntime bool) {
	provider := "cadvisor"
	if fromRuntime {
		provider = "cri"
	}
	fixedGauge(registry, "kubelet_metrics_provider", "Where the metrics of containers are read from. The value is always 1.",
		prometheus.Labels{"provider": provider})
}

// fixedGauge registers a gauge whose labels say something and whose value is always 1.
func fixedGauge(registry prometheus.Registerer, name, help string, labels prometheus.Labels) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	gauge.Set(1)
	registry.MustRegister(gauge)
}
