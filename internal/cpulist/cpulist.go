// Package cpulist parses lists of CPUs, such as 0-3,8, from texts that may be wrong.
package cpulist

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

const (
	// maxCPU is the largest number of a CPU: the kernel has at most 8192.
	maxCPU = 8191
	// maxLength is more than the kernel needs to list all that a machine can have.
	maxLength = 1 << 16
)

// Parse is cpuset.Parse, which puts all CPUs of a range into memory, however many they are: a range up to 9999999999 takes all that there is.
func Parse(text string) (cpuset.CPUSet, error) {
	if len(text) > maxLength {
		return cpuset.New(), fmt.Errorf("%.80q…: it has more than %d characters", text, maxLength)
	}
	for number := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == '-' }) {
		if n, err := strconv.Atoi(number); err == nil && n > maxCPU {
			return cpuset.New(), fmt.Errorf("there is no CPU %d: the last one can be %d", n, maxCPU)
		}
	}
	return cpuset.Parse(text)
}
