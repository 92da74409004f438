package explain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/timeline"
)

// TestAStartWithTwoClaims has them provisioned one after the other, in stages of the same name.
func TestAStartWithTwoClaims(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	stage := func(name string, from, to int) timeline.Stage {
		return timeline.Stage{Name: name, Owner: "o", Attempt: 1, Start: at(from), End: at(to)}
	}
	pod := timeline.Record{Stages: []timeline.Stage{
		stage(timeline.StageAccepted, 1, 1), stage(timeline.StageScheduled, 1, 5), stage(timeline.StageObserved, 5, 5),
	}}
	claims := []timeline.Record{
		{Stages: []timeline.Stage{stage(timeline.StageProvisioning, 1, 3)}},
		{Stages: []timeline.Stage{stage(timeline.StageProvisioning, 3, 5)}},
	}
	require.Equal(t, []Segment{{Name: timeline.StageProvisioning, Owner: "o", Ms: 4000}}, newTimeBreakdown(pod, claims).Segments)
}
