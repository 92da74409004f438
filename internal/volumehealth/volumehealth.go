// Package volumehealth has what CSI drivers report of the health of volumes (CSI 1.13), and the words of the events about it
// (KEP-1432).
package volumehealth

import (
	"fmt"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// The reasons of events, as KEP-1432 has them.
const (
	ReasonAbnormal = "VolumeConditionAbnormal"
	ReasonNormal   = "VolumeConditionNormal"
)

// Problem is one thing that is wrong with a volume.
type Problem struct {
	// Status is one of CSI's, such as DEGRADED. Reason is a word in CamelCase. Message may be empty.
	Status, Reason, Message string
}

// String returns the problem for an event.
func (p Problem) String() string {
	if p.Message == "" {
		return fmt.Sprintf("%s (%s)", p.Reason, strings.ToLower(p.Status))
	}
	return fmt.Sprintf("%s (%s): %s", p.Reason, strings.ToLower(p.Status), p.Message)
}

// Text returns all that is wrong with a volume for an event, "" if nothing is.
func Text(problems []Problem) string {
	texts := make([]string, 0, len(problems))
	for _, problem := range problems {
		texts = append(texts, problem.String())
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// FromCSI returns what a driver reports. Problems of a type that this version of CSI does not know keep their number.
func FromCSI(reported *csipb.VolumeHealth) []Problem {
	var problems []Problem
	for _, entry := range reported.GetHealthStatuses() {
		problems = append(problems, Problem{Status: entry.GetStatus().String(), Reason: entry.GetReason(), Message: entry.GetMessage()})
	}
	return problems
}
