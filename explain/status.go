package explain

import (
	"fmt"
	"time"

	"github.com/berth-dev/berth/timeline"
)

// refusedStatus returns the last write of the Pod's status if the API server has refused it; nil if it has not. What the API has
// of the Pod is out of date then.
func (f *facts) refusedStatus() *timeline.Stage {
	for i := len(f.record.Stages) - 1; i >= 0; i-- {
		stage := &f.record.Stages[i]
		if stage.Name != timeline.StageStatus || !stage.Done() {
			continue
		}
		if stage.Reason == timeline.ReasonStatusRefused {
			return stage
		}
		return nil
	}
	return nil
}

// podStatusRefused reports that the API server does not know how far the Pod is.
func podStatusRefused(f *facts) *finding {
	refused := f.refusedStatus()
	if refused == nil {
		return nil
	}
	found := &finding{state: Waiting, next: f.kubectl("describe pod", f.pod.Name)}
	f.describeRefusal(found, refused, "waiting")
	return found
}

// describeRefusal describes the refusal of a status, since when it lasts, and what to do; verb says what the Pod is doing.
func (f *facts) describeRefusal(found *finding, refused *timeline.Stage, verb string) {
	if found.since.IsZero() {
		found.since = f.refusedSince()
	}
	found.reason, found.heldBy, found.remedy = timeline.ReasonStatusRefused, "API server", refused.Remedy
	found.verdict = fmt.Sprintf("%s %s: the API server refuses the status that the kubelet of node %s writes (attempt %d): %s", verb,
		f.ago(found.since), f.pod.Spec.NodeName, refused.Attempt, refused.Error)
	found.evidence = append(found.evidence, Evidence{"Pod/" + f.pod.Name, "stage " + refused.Name + " " + refused.Subject, refused.Error})
}

// refusedSince returns when the first of the refusals began that no accepted status has followed.
func (f *facts) refusedSince() time.Time {
	var since time.Time
	for _, stage := range f.record.Stages {
		switch {
		case stage.Name != timeline.StageStatus || !stage.Done():
		case stage.Error == "":
			since = time.Time{}
		case since.IsZero() && stage.Reason == timeline.ReasonStatusRefused:
			since = stage.Start
		}
	}
	return since
}
