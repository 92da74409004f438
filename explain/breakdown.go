package explain

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-dev/berth/timeline"
)

// TimeBreakdown says where the time of a Pod's first start went, once the Pod is ready. Its segments follow one another
// without gaps, and their durations sum to the total: each moment belongs to the stage that the start waited for.
type TimeBreakdown struct {
	// From and To are the first and the last moment: accepted, and ready as the API shows it.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// TotalMs is the time between From and To.
	TotalMs float64 `json:"totalMs"`
	// UnaccountedMs is the part of TotalMs that no segment names.
	UnaccountedMs float64   `json:"unaccountedMs"`
	Segments      []Segment `json:"parts"`
}

// Segment is what a start waited for during some time.
type Segment struct {
	// Name is a stage with its subject, or a hand-over between two components.
	Name string `json:"name"`
	// Owner is the component that worked on the Pod; empty for unaccounted time.
	Owner string  `json:"owner,omitempty"`
	Ms    float64 `json:"ms"`
}

// gap names the time between the end of one stage and the start of the next, by the two stages.
type gap struct {
	after, before string // empty stands for any
	name, owner   string
}

// stageQueued is what package provision records while a claim waits for a worker.
const stageQueued = "ProvisionQueued"

// unaccounted names time that neither a stage nor a gap accounts for.
const unaccounted = "unaccounted"

// gaps has the known gaps: the work that happens between two stages. The first match counts; a gap without a match is
// unaccounted.
var gaps = []gap{
	// The kubelet's stages are in a record of another process.
	{timeline.StageAccepted, timeline.StageObserved, unaccounted, ""},
	{timeline.StageScheduled, timeline.StageObserved, unaccounted, ""},
	{timeline.StageAttach, timeline.StageObserved, unaccounted, ""},
	{timeline.StageAccepted, stageQueued, "scheduler chooses a node", "scheduler"},
	{timeline.StageAccepted, timeline.StageProvisioning, "claim reaches the provisioner", "provision"},
	{timeline.StageAccepted, "", "watch: accepted to seen", "api"},
	{timeline.StageProvisioning, timeline.StageSaving, "volume object prepared", "provision"},
	{timeline.StageSaving, timeline.StageBound, "volume bound to the claim", "kube-controller-manager"},
	{timeline.StageProvisioning, timeline.StageBound, "volume written and bound", "provision, kube-controller-manager"},
	{timeline.StageProvisioning, timeline.StageScheduled, "volume written, bound, pod bound", "scheduler"},
	{timeline.StageSaving, timeline.StageScheduled, "volume bound, pod bound", "scheduler"},
	// Several watches report this, and the kubelet's may be the first.
	{timeline.StageSaving, timeline.StageSeen, "volume bound, pod bound", "scheduler"},
	{timeline.StageProvisioning, timeline.StageSeen, "volume written, bound, pod bound", "scheduler"},
	{timeline.StageBound, timeline.StageScheduled, "scheduler notices the bound claim", "scheduler"},
	{timeline.StageBound, timeline.StageSeen, "scheduler notices the bound claim", "scheduler"},
	{stageQueued, timeline.StageProvisioning, "provisioner queue", "provision"},
	{timeline.StageScheduled, timeline.StageSeen, "watch: bound to kubelet", "api"},
	{timeline.StageSeen, timeline.StageAdmitted, "admission", "kubelet"},
	{timeline.StageSeen, "", "cgroups and directories", "kubelet"},
	{timeline.StageAdmitted, "", "cgroups and directories", "kubelet"},
	{timeline.StageScheduled, "", "cgroups and directories", "kubelet"},
	{timeline.StageVolume, "", "after the volumes", "kubelet"},
	{timeline.StageImage, "", "after the image", "kubelet"},
	{timeline.StageSandbox, "", "container configuration", "kubelet"},
	{timeline.StageCreate, "", "container created to start", "kubelet"},
	{timeline.StageVolume, timeline.StageVolume, "pause after a failure", "kubelet"},
	{timeline.StageStart, timeline.StageInit, "init container runs", "container"},
	{timeline.StageInit, "", "next container", "kubelet"},
	{timeline.StageStart, "", "runtime reports the start", "kubelet"},
	{timeline.StagePostStart, "", "runtime reports the start", "kubelet"},
	{timeline.StageProbe, "", "verdict to status", "kubelet"},
	{timeline.StageReady, timeline.StageStatus, "status write", "api"},
	{timeline.StageReady, timeline.StageObserved, "status write and watch", "api"},
	{timeline.StageStatus, timeline.StageObserved, "watch: status observed", "api"},
	{timeline.StageAttach, "", "after the attach", "attachdetach"},
}

// newTimeBreakdown draws up the account of a Pod's first start, once that is over. It goes backwards from the end: the start waited last for the
// stage that ended last, before that for what ended last when that one began, and so on.
func newTimeBreakdown(pod timeline.Record, claims []timeline.Record) *TimeBreakdown {
	a := &TimeBreakdown{}
	accepted, complete := false, false
	var steps []timeline.Stage
	for _, stage := range pod.Stages {
		switch {
		case stage.Name == timeline.StageAccepted:
			accepted = true
		case stage.Name == timeline.StageObserved && !complete:
			a.To, complete = stage.Start, true
		}
		// Two watches report a new Pod, and the kubelet's may be the first.
		if a.From.IsZero() || stage.Start.Before(a.From) {
			a.From = stage.Start
		}
		if stage.Name != timeline.StageStatus || stage.Subject == readyStatus {
			steps = append(steps, stage)
		}
	}
	if !accepted || !complete {
		return nil
	}
	steps = append(steps, claimStages(steps, claims)...)
	a.fill(steps)
	return a
}

// claimStages returns the stages of the claims while the Pod waits for its node. They say what the scheduler waits for,
// so only the end of the scheduler's own stage counts.
func claimStages(steps []timeline.Stage, claims []timeline.Record) []timeline.Stage {
	var scheduled *timeline.Stage
	for i := range steps {
		if steps[i].Name == timeline.StageScheduled {
			scheduled = &steps[i]
		}
	}
	var own []timeline.Stage
	for _, claim := range claims {
		for _, stage := range claim.Stages {
			if stage.Name != timeline.StageAccepted && (scheduled == nil || !stage.Start.Before(scheduled.Start)) {
				own = append(own, stage)
			}
		}
	}
	if scheduled != nil && len(own) > 0 && scheduled.Done() {
		scheduled.Start = scheduled.End
	}
	return own
}

// readyStatus is the subject of the status write that made the Pod ready.
const readyStatus = "Running, Ready"

func (a *TimeBreakdown) fill(steps []timeline.Stage) {
	for i := range steps {
		if !steps[i].Done() || steps[i].End.After(a.To) {
			steps[i].End = a.To
		}
	}
	steps = slices.DeleteFunc(steps, func(s timeline.Stage) bool { return !s.Start.Before(a.To) && s.Name != timeline.StageObserved })
	at, next := a.To, timeline.StageObserved
	for at.After(a.From) {
		latest := latestStage(steps, at, next)
		if latest < 0 {
			a.addSegment(Segment{Name: unaccounted}, at.Sub(a.From))
			break
		}
		step := steps[latest]
		if gap := at.Sub(step.End); gap > 0 {
			a.addSegment(gapBetween(step.Name, next), gap)
		}
		begin := step.Start
		if begin.Before(a.From) {
			begin = a.From
		}
		if took := minTime(step.End, at).Sub(begin); took > 0 {
			a.addSegment(Segment{Name: trimSpaceRight(step.Name + " " + step.Subject), Owner: step.Owner}, took)
		}
		at, next = minTime(begin, at), step.Name
		steps = slices.Delete(steps, latest, latest+1)
	}
	slices.Reverse(a.Segments)
	a.TotalMs = millis(a.To.Sub(a.From))
}

func trimSpaceRight(s string) string {
	if s[len(s)-1] == ' ' {
		return s[:len(s)-1]
	}
	return s
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// latestStage is the index of the stage that ended last at or before the moment; of stages that go on across it, the one that began
// last. Of marks at the same moment the one recorded last counts. It is -1 if there is none.
func latestStage(steps []timeline.Stage, at time.Time, next string) int {
	best := -1
	key := func(s *timeline.Stage) time.Time { return minTime(s.End, at) }
	for i := range steps {
		step := &steps[i]
		if step.Start.After(at) || step.Name == next && next == timeline.StageObserved {
			continue
		}
		if step.Start.Equal(at) && step.End.After(at) {
			continue // it only began then
		}
		if best < 0 || cmp.Or(key(step).Compare(key(&steps[best])), step.Start.Compare(steps[best].Start)) >= 0 {
			best = i
		}
	}
	return best
}

func gapBetween(after, before string) Segment {
	for _, h := range gaps {
		if (h.after == after || h.after == "") && (h.before == before || h.before == "") {
			return Segment{Name: h.name, Owner: h.owner}
		}
	}
	return Segment{Name: unaccounted}
}

func (a *TimeBreakdown) addSegment(part Segment, took time.Duration) {
	part.Ms = millis(took)
	if part.Owner == "" {
		a.UnaccountedMs += part.Ms
	}
	if n := len(a.Segments); n > 0 && a.Segments[n-1].Name == part.Name {
		a.Segments[n-1].Ms += part.Ms
		return
	}
	a.Segments = append(a.Segments, part)
}
