package provision

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNext(t *testing.T) {
	// wanted is a claim that asks for a volume.
	wanted := func(change func(*claimFacts)) claimFacts {
		f := claimFacts{exists: true, wanted: true}
		if change != nil {
			change(&f)
		}
		return f
	}
	// saved is a claim whose PersistentVolume exists.
	saved := func(change func(*claimFacts)) claimFacts {
		f := claimFacts{exists: true, intent: true, volume: volumeSaved}
		if change != nil {
			change(&f)
		}
		return f
	}
	for _, test := range []struct {
		name  string
		phase phase
		facts claimFacts
		want  decision
	}{
		{"new claim", phasePending, wanted(nil), decision{doProvision, phasePending}},
		{"claim of another provisioner", phasePending, claimFacts{exists: true}, decision{doFinish, phasePending}},
		{"claim is deleted", phasePending, claimFacts{}, decision{doForget, phaseForgotten}},
		{"controller stops", phasePending, wanted(func(f *claimFacts) { f.stopping = true }),
			decision{doNothing, phasePending}},
		{"class does not exist", phasePending, wanted(func(f *claimFacts) { f.obstacle = obstacleNoClass }),
			decision{doReport, phasePending}},
		{"block is not supported", phasePending, wanted(func(f *claimFacts) { f.obstacle = obstacleBlock }),
			decision{doReport, phasePending}},
		{"class of another provisioner", phasePending, wanted(func(f *claimFacts) { f.obstacle = obstacleForeignClass }),
			decision{doReport, phasePending}},
		{"no node is selected", phasePending, wanted(func(f *claimFacts) { f.obstacle = obstacleNoNode }),
			decision{doFinish, phasePending}},
		{"backoff", phasePending, wanted(func(f *claimFacts) { f.readiness = readyLater }),
			decision{doRetryLater, phasePending}},
		{"given up", phasePending, wanted(func(f *claimFacts) { f.readiness = readyOnChange }),
			decision{doRemoveIntent, phasePending}},
		{"given up with an unknown outcome keeps the intent", phasePending,
			wanted(func(f *claimFacts) { f.readiness, f.mayExist = readyOnChange, true }), decision{doNothing, phasePending}},
		{"deleted with an unknown outcome is provisioned again", phasePending, claimFacts{mayExist: true},
			decision{doProvision, phasePending}},
		{"turned to another provisioner with an unknown outcome", phasePending, claimFacts{exists: true, mayExist: true},
			decision{doProvision, phasePending}},

		{"unknown outcome, and the class is another provisioner's now", phasePending,
			wanted(func(f *claimFacts) { f.mayExist, f.obstacle = true, obstacleForeignClass }), decision{doProvision, phasePending}},
		{"unknown outcome, and the class is deleted", phasePending,
			wanted(func(f *claimFacts) { f.mayExist, f.obstacle = true, obstacleNoClass }), decision{doReport, phasePending}},

		{"call is queued", phaseQueued, wanted(nil), decision{doNothing, phaseQueued}},
		{"call is queued and the claim is deleted", phaseQueued, claimFacts{}, decision{doNothing, phaseQueued}},
		{"call runs", phaseCalling, wanted(nil), decision{doNothing, phaseCalling}},

		{"volume is returned", phaseSaving, claimFacts{exists: true, mayExist: true}, decision{doSave, phaseSaving}},
		{"volume is returned for a deleted claim", phaseSaving, claimFacts{mayExist: true}, decision{doSave, phaseSaving}},
		{"saving failed", phaseSaving, claimFacts{exists: true, pausing: true}, decision{doNothing, phaseSaving}},
		{"saving failed and the controller stops", phaseSaving, claimFacts{exists: true, pausing: true, stopping: true},
			decision{doSave, phaseSaving}},
		{"saving was given up", phaseCleaning, claimFacts{exists: true}, decision{doClean, phaseCleaning}},
		{"deleting failed", phaseCleaning, claimFacts{exists: true, pausing: true}, decision{doNothing, phaseCleaning}},
		{"saving was given up and the controller stops", phaseCleaning, claimFacts{exists: true, stopping: true},
			decision{doNothing, phaseCleaning}},
		{"saving was given up and the volume turns up", phaseCleaning, saved(nil), decision{doNothing, phaseBinding}},

		{"saved", phaseSaving, saved(nil), decision{doNothing, phaseBinding}},
		{"saved by an earlier process", phasePending, saved(nil), decision{doNothing, phaseBinding}},
		{"bound", phaseBinding, saved(func(f *claimFacts) { f.bound = true }), decision{doYield, phaseBound}},
		{"bound, in turn", phaseFinishing, saved(func(f *claimFacts) { f.bound = true }), decision{doFinish, phaseFinishing}},
		{"bound without intent", phaseBinding, saved(func(f *claimFacts) { f.bound, f.intent = true, false }),
			decision{doFinish, phaseFinishing}},
		{"bound and being deleted does not yield", phaseBound, saved(func(f *claimFacts) { f.bound, f.deleting = true, true }),
			decision{doFinish, phaseFinishing}},
		{"being deleted before it is bound", phaseBinding, saved(func(f *claimFacts) { f.deleting = true }),
			decision{doRemoveIntent, phaseAbandoned}},
		{"asks for another volume", phaseBinding, saved(func(f *claimFacts) { f.elsewhere = true }),
			decision{doRemoveIntent, phaseAbandoned}},
		{"deleted after it was saved", phaseAbandoned, claimFacts{volume: volumeSaved}, decision{doForget, phaseForgotten}},
		{"finishes although the controller stops", phaseFinishing,
			saved(func(f *claimFacts) { f.bound, f.stopping = true, true }), decision{doFinish, phaseFinishing}},

		{"cache does not show the volume", phaseBinding, claimFacts{exists: true, volume: volumeUnverified},
			decision{doVerify, phaseBinding}},
		{"volume disappeared", phaseBinding, wanted(nil), decision{doProvision, phasePending}},
		{"volume of a Bound claim disappeared", phaseFinishing, claimFacts{exists: true, bound: true, intent: true},
			decision{doFinish, phasePending}},
		{"forgotten", phaseForgotten, wanted(nil), decision{doNothing, phaseForgotten}},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, next(test.phase, test.facts))
		})
	}
}

// TestNextKeepsItsPromises holds next to what must be true of every phase with all facts.
func TestNextKeepsItsPromises(t *testing.T) {
	forEachFacts(func(f claimFacts) {
		for p := phasePending; p <= phaseForgotten; p++ {
			d := next(p, f)
			says := func(format string, args ...any) string {
				return fmt.Sprintf("phase %d, %+v -> %+v: ", p, f, d) + fmt.Sprintf(format, args...)
			}
			callOwnsClaim := p == phaseQueued || p == phaseCalling || p == phaseForgotten
			if callOwnsClaim && d != (decision{doNothing, p}) {
				t.Fatal(says("the claim belongs to a call"))
			}
			if !callOwnsClaim && (d.phase == phaseQueued || d.phase == phaseCalling) {
				t.Fatal(says("only the action itself queues a call"))
			}
			losesVolume := d.do == doForget || d.do == doFinish || d.do == doRemoveIntent
			if losesVolume && f.volume == volumeNone && (f.mayExist || p == phaseSaving || p == phaseCleaning) {
				t.Fatal(says("a volume may exist that no PersistentVolume names"))
			}
			if f.stopping && (d.do == doProvision || d.do == doClean) {
				t.Fatal(says("a stopping controller calls the provisioner"))
			}
			if d.do == doClean && f.volume == volumeSaved {
				t.Fatal(says("a saved volume is deleted"))
			}
			if f.volume == volumeSaved && !callOwnsClaim && f.exists && !f.bound && !f.deleting && !f.elsewhere &&
				d.do != doNothing {
				t.Fatal(says("a write is in the way of the binder"))
			}
			if d.do == doVerify && d.phase != p {
				t.Fatal(says("the phase changes before the volume is verified"))
			}
		}
	})
}

// forEachFacts calls f with all facts that can be.
func forEachFacts(f func(claimFacts)) {
	const flags = 9
	for bits := range 1 << flags {
		is := func(flag int) bool { return bits&(1<<flag) != 0 }
		facts := claimFacts{
			stopping: is(0), exists: is(1), deleting: is(2), bound: is(3), elsewhere: is(4), intent: is(5),
			pausing: is(6), mayExist: is(7), wanted: is(8),
		}
		if !facts.exists && (facts.deleting || facts.bound || facts.elsewhere || facts.intent || facts.wanted) {
			continue
		}
		for facts.volume = volumeNone; facts.volume <= volumeUnverified; facts.volume++ {
			for facts.readiness = readyNow; facts.readiness <= readyOnChange; facts.readiness++ {
				for facts.obstacle = obstacleNone; facts.obstacle <= obstacleNoNode; facts.obstacle++ {
					f(facts)
				}
			}
		}
	}
}
