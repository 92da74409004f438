// Package contain is the root of the goroutines of the control plane: a panic there becomes an error or ends one goroutine, with a log
// entry that has the stack and a count, and the API server, etcd and the controllers, which share the process, run on.
//
// Its metric is the only state of the package, because a panic can occur where no dependency is at hand.
package contain

import (
	"context"
	"fmt"
	"runtime/debug"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

// panics counts recovered panics by the place that recovered them.
var panics = metrics.NewCounterVec(&metrics.CounterOpts{
	Name: "berth_panics_total", Help: "Panics that were contained, by the step that panicked.", StabilityLevel: metrics.ALPHA,
}, []string{"site"})

// upstream is the site of the panics that Kubernetes' own code recovers from.
const upstream = "kubernetes"

// Install lets the goroutines of Kubernetes' controllers, scheduler and API server go on with their next object after a panic. Upstream's
// default ends the process, which has all of them here: an object that makes one controller panic would take the API with it, again after
// each start. It is called once, by the main function.
func Install() {
	legacyregistry.MustRegister(panics)
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(context.Context, any) { panics.WithLabelValues(upstream).Inc() })
}

// Do runs fn and returns a panic of it as an error.
func Do(site string, fn func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			panics.WithLabelValues(site).Inc()
			klog.ErrorS(nil, "Recovered from a panic", "site", site, "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s panicked: %v", site, value)
		}
	}()
	return fn()
}

// Func returns a function that does the same, for the Go method of an errgroup.
func Func(site string, fn func() error) func() error {
	return func() error { return Do(site, fn) }
}

// Guard returns a function that runs fn and only records a panic of it: for goroutines whose end is their only result.
func Guard(site string, fn func()) func() {
	return func() {
		_ = Do(site, func() error { fn(); return nil })
	}
}
