package iolimit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/quantity"
)

const (
	// ParameterIOPS is the parameter with the most reads, and the most writes, per second: a whole number, or Unlimited.
	ParameterIOPS = "iops"
	// ParameterThroughput is the parameter with the most bytes read, and the most bytes written, per second: a quantity, or
	// Unlimited.
	ParameterThroughput = "throughput"
	// Unlimited is the value of a parameter that does not limit.
	Unlimited = "max"
)

// Limits bound the reads of a device, and in the same way its writes; 0 means no limit.
type Limits struct {
	// IOPS is how many of them a second may have.
	IOPS int64 `json:"iops,omitempty"`
	// Throughput is how many bytes a second may have.
	Throughput int64 `json:"throughput,omitempty"`
}

// IsZero reports whether nothing is limited.
func (l Limits) IsZero() bool { return l == Limits{} }

// String returns the limits for people.
func (l Limits) String() string {
	var parts []string
	if l.IOPS > 0 {
		parts = append(parts, fmt.Sprintf("%s=%d", ParameterIOPS, l.IOPS))
	}
	if l.Throughput > 0 {
		parts = append(parts, fmt.Sprintf("%s=%s", ParameterThroughput, resource.NewQuantity(l.Throughput, resource.BinarySI)))
	}
	if len(parts) == 0 {
		return "no limits"
	}
	return strings.Join(parts, " ")
}

// Parse returns the limits that parameters name. What they do not name is not limited. An error names the parameter.
func Parse(parameters map[string]string) (Limits, error) {
	var l Limits
	for key, value := range parameters {
		var err error
		switch key {
		case ParameterIOPS:
			if value != Unlimited {
				l.IOPS, err = strconv.ParseInt(value, 10, 64)
			}
			if err != nil || l.IOPS < 0 || l.IOPS == 0 && value != Unlimited {
				return Limits{}, fmt.Errorf("%s %q is neither a whole number of at least 1 nor %q", key, value, Unlimited)
			}
		case ParameterThroughput:
			var amount resource.Quantity
			if value != Unlimited {
				amount, err = quantity.Parse(value)
			}
			l.Throughput = amount.Value()
			if err != nil || l.Throughput < 0 || l.Throughput == 0 && value != Unlimited {
				return Limits{}, fmt.Errorf("%s %q is neither a quantity of bytes per second, such as 50Mi, nor %q", key, value, Unlimited)
			}
		default:
			return Limits{}, fmt.Errorf("%q is not supported, only %q and %q", key, ParameterIOPS, ParameterThroughput)
		}
	}
	return l, nil
}

// Device is the number of a block device, of a whole one.
type Device struct{ Major, Minor uint32 }

// String returns the device's number as the kernel writes it.
func (d Device) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// unifiedLine returns the line of io.max that has the limits of the device.
func unifiedLine(d Device, l Limits) string {
	bps, iops := unifiedValue(l.Throughput), unifiedValue(l.IOPS)
	return fmt.Sprintf("%s rbps=%s wbps=%s riops=%s wiops=%s", d, bps, bps, iops, iops)
}

func unifiedValue(limit int64) string {
	if limit == 0 {
		return Unlimited
	}
	return strconv.FormatInt(limit, 10)
}

// legacyFiles returns the files of blkio with the limits that they have to have.
func legacyFiles(l Limits) map[string]int64 {
	return map[string]int64{
		"blkio.throttle.read_bps_device": l.Throughput, "blkio.throttle.write_bps_device": l.Throughput,
		"blkio.throttle.read_iops_device": l.IOPS, "blkio.throttle.write_iops_device": l.IOPS,
	}
}

// hasLine reports whether the content of a file of limits has that line; of a line without limits, that it has none of the
// device.
func hasLine(content string, d Device, line string, limited bool) bool {
	lines := strings.Split(strings.TrimSpace(content), "\n")
	if limited {
		return slices.Contains(lines, line)
	}
	return !slices.ContainsFunc(lines, func(have string) bool { return strings.HasPrefix(have, d.String()+" ") })
}
