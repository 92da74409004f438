package timeline_test

import (
	"errors"
	"fmt"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
)

// A component records the stages of a Pod; explain, metrics and traces read the record.
func ExampleRecorder() {
	recorder := timeline.New(clock.RealClock{}, 0)
	pod := timeline.Ref{Kind: "Pod", Namespace: "default", Name: "web", UID: "uid-of-web"}

	recorder.Mark(pod, "api", timeline.StageAccepted, "", nil)
	span := recorder.Begin(pod, "kubelet", timeline.StageImage, "nginx")
	span.End(timeline.WithReason(errors.New("registry is unreachable"), "ErrImagePull", "check the network"))
	span = recorder.Begin(pod, "kubelet", timeline.StageImage, "nginx")
	span.End(nil)

	record, _ := recorder.Record(pod.UID)
	for _, stage := range record.Stages {
		fmt.Printf("%s %q attempt %d %q\n", stage.Name, stage.Subject, stage.Attempt, stage.Reason)
	}
	// Output:
	// Accepted "" attempt 1 ""
	// Image "nginx" attempt 1 "ErrImagePull"
	// Image "nginx" attempt 2 ""
}
