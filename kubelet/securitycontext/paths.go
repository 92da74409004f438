package securitycontext

import (
	"path/filepath"
	"slices"
	"sync"
)

// readonlyPaths are the paths below /proc that a container may read but not modify.
var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

var maskedOnce = sync.OnceValue(func() []string {
	paths := []string{
		"/proc/asound",
		"/proc/acpi",
		"/proc/interrupts",
		"/proc/kcore",
		"/proc/keys",
		"/proc/latency_stats",
		"/proc/timer_list",
		"/proc/timer_stats",
		"/proc/sched_debug",
		"/proc/scsi",
		"/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	// The throttling counters of a CPU reveal the activity of other workloads.
	throttle, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // the pattern is well-formed
	return append(paths, throttle...)
})

// maskedPaths returns the paths that are hidden from a container.
func maskedPaths() []string {
	return slices.Clone(maskedOnce())
}
