package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// observer reads what the status is computed from: the machine, the runtime and its images. It is not safe for
// concurrent use.
type observer struct {
	config *Config
	deps   *Deps

	observed     observed
	runtimeSeen  time.Time // time of the runtime's last response; zero: none yet
	runtimeErr   error
	nextRuntime  time.Time
	nextImages   time.Time
	nextInstance time.Time
}

// observe applies the changes and reads what is stale of the runtime and the machine.
func (o *observer) observe(ctx context.Context, config *Config, changes changes) (err error) {
	now := o.deps.Clock.Now()
	// They stay due if reading them fails, or something before.
	if changes.runtimeStale {
		o.nextRuntime = now
	}
	if changes.imagesStale {
		o.nextImages = now
	}
	runtimeDue := !now.Before(o.nextRuntime)
	o.observed.ips, o.observed.port = changes.ips, changes.port
	if err := o.refreshInstance(ctx, config); err != nil {
		return err
	}
	if o.observed.info.Cores == 0 {
		if o.observed.info, err = o.deps.Machine.Info(); err != nil {
			return fmt.Errorf("read machine properties: %w", err)
		}
	}
	if o.observed.usage, err = o.deps.Machine.Usage(); err != nil {
		return fmt.Errorf("read machine usage: %w", err)
	}
	o.observed.pressure = o.deps.Pressure()
	o.observed.devices.capacity, o.observed.devices.allocatable = o.deps.Devices()
	if runtimeDue {
		o.refreshRuntime(ctx)
		o.nextRuntime = now.Add(runtimeInterval)
	}
	if !now.Before(o.nextImages) && o.runtimeErr == nil && o.refreshImages(ctx) {
		o.nextImages = now.Add(imagesInterval)
	}
	o.observed.notReady = o.notReady(changes.notReadyReasons, now)
	if runtimeDue && o.unhealthy() {
		o.nextRuntime = now.Add(retryMin) // the timer retries with backoff; events in between do not
	}
	return nil
}

// unhealthy reports whether the runtime was unreachable or the node not ready in the last observation.
func (o *observer) unhealthy() bool { return o.runtimeErr != nil || len(o.observed.notReady) > 0 }

// refreshRuntime reads the runtime's status and version. The previous ones are kept while it is unreachable.
func (o *observer) refreshRuntime(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status, err := o.deps.Runtime.Status(ctx, statusRequest)
	var version *runtimeapi.VersionResponse
	if err == nil {
		// It may have been restarted with another version.
		version, err = o.deps.Runtime.Version(ctx, versionRequest)
	}
	o.runtimeErr = err
	if err != nil {
		o.deps.Logger.Warn("failed to read status of container runtime", "error", err)
		return
	}
	o.observed.runtime, o.observed.version = status, version
	o.runtimeSeen = o.deps.Clock.Now()
	o.deps.OnRuntime(status)
}

// refreshImages lists the runtime's images. It reports whether that succeeded.
func (o *observer) refreshImages(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	listedAt := o.deps.Clock.Now()
	response, err := o.deps.Runtime.ListImages(ctx, imagesRequest)
	if err != nil {
		o.deps.Logger.Warn("failed to list images for node status", "error", err)
		return false
	}
	o.deps.OnImages(response.Images, listedAt)
	o.observed.images = slices.Clone(response.Images)
	if o.observed.images == nil {
		o.observed.images = noImages
	}
	return true
}

// notReady returns all reasons for which the node is not ready.
func (o *observer) notReady(reasons map[string]error, now time.Time) []string {
	var list []string
	switch {
	case o.runtimeSeen.IsZero() && o.runtimeErr != nil:
		list = append(list, "container runtime is down: "+o.runtimeErr.Error())
	case o.runtimeSeen.IsZero():
		list = append(list, "container runtime status check may not have completed yet")
	case o.runtimeErr != nil && now.Sub(o.runtimeSeen) >= runtimeGrace:
		list = append(list, "container runtime is down")
	}
	list = append(list, runtimeReasons(o.observed.runtime)...)
	for _, key := range slices.Sorted(maps.Keys(reasons)) {
		list = append(list, reasons[key].Error())
	}
	return list
}
