package agent

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // counts the requests of client-go

	"github.com/berth-dev/berth/kubelet/metrics"
	"github.com/berth-dev/berth/kubelet/server"
)

// registries hold the agent's metrics, and what records them for several components.
type registries struct {
	main, probes *prometheus.Registry // served at /metrics and /metrics/probes
	served       prometheus.Gatherer  // main, the process's and Deps.Gatherers
	pods         *metrics.Pods
	pleg         *metrics.PLEG
	images       *metrics.Images
	nodeStart    *metrics.NodeStart
	requests     *server.RequestMetrics
}

func newRegistries(deps *Deps, config *Config) (*registries, error) {
	registry, now := prometheus.NewRegistry(), deps.Clock.Now()
	r := &registries{
		main: registry, probes: prometheus.NewRegistry(), pods: metrics.NewPods(registry),
		pleg: metrics.NewPLEG(registry, deps.Clock), images: metrics.NewImages(registry),
		nodeStart: metrics.NewNodeStart(registry, bootTime(now), now),
		requests:  server.NewRequestMetrics(registry, deps.Clock),
	}
	for _, collector := range deps.Collectors {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("agent: Deps.Collectors: %w", err)
		}
	}
	metrics.RegisterBuild(registry, config.Features)
	// The libraries of Kubernetes register theirs, those of the process and of Go's runtime among them, in one registry of the process.
	r.served = append(prometheus.Gatherers{registry, legacyregistry.DefaultGatherer}, deps.Gatherers...)
	return r, nil
}

// bootTime returns when the machine was booted, zero if the kernel does not say.
func bootTime(now time.Time) time.Time {
	var since unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &since); err != nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(since.Nano()))
}
