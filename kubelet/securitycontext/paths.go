package securitycontext

import (
	"path/filepath"
	"slices"
	"sync"
)

// readonlyPaths are those below /proc that a container may look at but not change.
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
	// The times at which a CPU was throttled tell of what the neighbours do.
	throttle, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // the pattern is well-formed
	return append(paths, throttle...)
})

// maskedPaths are those that a container does not see at all.
func maskedPaths() []string {
	return slices.Clone(maskedOnce())
}
