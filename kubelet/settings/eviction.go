package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/node"
)

// The signals of eviction thresholds that set a condition of the Node.
const (
	signalMemory     = "memory.available"
	signalDisk       = "nodefs.available"
	signalDiskInodes = "nodefs.inodesFree"
	signalPIDs       = "pid.available"
)

// elsewhere are the signals of file systems that the Node has no condition of its own for: images and writable layers.
func elsewhere() []string {
	return []string{"imagefs.available", "imagefs.inodesFree", "containerfs.available", "containerfs.inodesFree", "allocatableMemory.available"}
}

// hasEvictionOnly reports whether hard thresholds differ from the defaults in signals that this kubelet does not observe.
func hasEvictionOnly(c *Configuration) bool {
	defaults := DefaultEvictionHard()
	for signal, threshold := range c.EvictionHard {
		if slices.Contains(elsewhere(), signal) && threshold != defaults[signal] {
			return true
		}
	}
	return false
}

// Thresholds returns the amounts below which the node is under pressure. The error names the signal that is wrong.
func Thresholds(hard map[string]string) (*node.Thresholds, error) {
	out := &node.Thresholds{}
	var errs []error
	for _, signal := range slices.Sorted(maps.Keys(hard)) {
		amount, fraction, err := parseThreshold(hard[signal])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s<%s: %w", signal, hard[signal], err))
			continue
		}
		switch {
		case signal == signalMemory:
			out.MemoryAvailable, out.MemoryAvailableFraction = amount, fraction
		case signal == signalDisk:
			out.DiskAvailableBytes, out.DiskAvailable = amount, fraction
		case signal == signalDiskInodes:
			out.InodesFreeCount, out.InodesFree = amount, fraction
		case signal == signalPIDs:
			out.PIDsAvailableCount, out.PIDsAvailable = amount, fraction
		case !slices.Contains(elsewhere(), signal):
			errs = append(errs, fmt.Errorf("unknown eviction signal %q", signal))
		}
	}
	return out, errors.Join(errs...)
}

// parseThreshold parses an amount, or a percentage of the capacity.
func parseThreshold(value string) (amount int64, fraction float64, err error) {
	if percentage, ok := strings.CutSuffix(value, "%"); ok {
		parsed, err := strconv.ParseFloat(percentage, 64)
		if err != nil || parsed < 0 || parsed > 100 {
			return 0, 0, errors.New("want a percentage, 0% to 100%")
		}
		return 0, parsed / 100, nil
	}
	quantity, err := resource.ParseQuantity(value)
	if err != nil || quantity.Sign() < 0 {
		return 0, 0, errors.New("want an amount such as 100Mi, or a percentage")
	}
	return quantity.Value(), 0, nil
}

// inForce returns the configuration without the values that have no effect.
func inForce(c *Configuration) *Configuration {
	out := c.DeepCopy()
	out.EvictionSoft, out.EvictionSoftGracePeriod, out.EvictionMinimumReclaim = nil, nil, nil
	out.EvictionMaxPodGracePeriod, out.KernelMemcgNotification = 0, false
	for _, signal := range elsewhere() {
		delete(out.EvictionHard, signal)
	}
	return out
}
