package provision

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/timeline"
)

// outcome is what is known of the volume of a claim that has no PersistentVolume.
type outcome int

const (
	// outcomeNone: no volume exists and none is being created.
	outcomeNone outcome = iota
	// outcomeIgnored is outcomeNone, and the provisioner returned an IgnoredError: the claim is another provisioner's.
	outcomeIgnored
	// outcomeUnknown: a volume may exist. A call left work in the background, its result was lost, or an earlier process
	// wrote the intent and did not finish.
	outcomeUnknown
)

// intent is what is known of our finalizer on the claim, beyond what the cache shows.
type intent int

const (
	intentFromCache intent = iota
	intentWritten
	intentRemoved
)

// attempt is what the provisioner is called with for a claim. Calls with an unknown outcome are repeated with the same.
type attempt struct {
	claim *corev1.PersistentVolumeClaim
	class *storagev1.StorageClass
	node  *corev1.Node
}

// unsavedVolume is a volume that a call returned, until its PersistentVolume exists or the volume is deleted again.
type unsavedVolume struct {
	volume *corev1.PersistentVolume
	// callStart is when the call began that returned the volume.
	callStart time.Time
	backoff   wait.Backoff
	// tries counts those to save the volume, from phaseCleaning on those to delete it.
	tries int
	// notBefore ends the pause after a failed try.
	notBefore time.Time
	// err is the last error of saving.
	err  error
	span *timeline.Span
}

// claimState is what the controller remembers of one claim from one sync to the next. All of it can be lost: the intent on
// the claim and the idempotence of the provisioner bring it back. It has many fields because a claim is followed from its first
// sight to Bound, and each step needs what the ones before it have left.
//
// mu guards everything below it. The sync workers hold it during a whole sync, API writes included; call workers hold it
// only to read their input and to store their result, with phaseCalling in between.
type claimState struct {
	uid types.UID
	ref timeline.Ref
	// since is when the claim was first seen waiting.
	since time.Time
	// resync is set when the informer repeats the claim unchanged.
	resync atomic.Bool
	// notified is set when a try that failed, or that is being made, may succeed now.
	notified atomic.Bool

	mu         sync.Mutex
	phase      phase
	phaseSince time.Time // when phase began
	outcome    outcome
	intent     intent
	retry      retry
	// attempt is the unfinished one.
	attempt attempt
	// found is the claim on which an intent of an earlier process was found. Its work is finished with it if the intent is
	// removed by hand, and with it the claim.
	found *corev1.PersistentVolumeClaim
	// unsaved is set in phaseSaving and phaseCleaning, and while a call deletes the volume.
	unsaved *unsavedVolume
	saved   savedVolume
	queued  *timeline.Span
}

// savedVolume is the PersistentVolume that we created for a claim.
type savedVolume struct {
	name string
	at   time.Time // when it was last known to exist; zero once the cache has shown it
}

// enter changes the phase.
func (st *claimState) enter(p phase, now time.Time) {
	if p != st.phase {
		st.phase, st.phaseSince = p, now
	}
}

// phaseBeforeCall is the phase from which a call was queued.
func (st *claimState) phaseBeforeCall() phase {
	if st.unsaved != nil {
		return phaseCleaning
	}
	return phasePending
}

// mayExist returns whether a volume may exist that no PersistentVolume names.
func (st *claimState) mayExist() bool { return st.outcome == outcomeUnknown }

// blocksOnWrites returns whether only writes to the API keep the claim from being Bound.
func (st *claimState) blocksOnWrites() bool {
	switch st.phase {
	case phaseQueued, phaseBinding:
		return true
	case phaseSaving:
		return st.unsaved.tries == 0
	}
	return false
}

// isElsewhere returns whether the claim names another volume than the one that was provisioned for it.
func (st *claimState) isElsewhere(claim *corev1.PersistentVolumeClaim) bool {
	name := claim.Spec.VolumeName
	return name != "" && name != st.saved.name && name != volumeNamePrefix+string(st.uid)
}

// object returns the claim as it is or, if it does not exist any more, as the unfinished work on it began or was found.
func (st *claimState) object(current *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	switch {
	case current != nil:
		return current
	case st.attempt.claim != nil:
		return st.attempt.claim
	}
	return st.found
}

// claimStates holds the states by claim, and the claims by class for when a class changes.
type claimStates struct {
	mu      sync.Mutex
	byUID   map[types.UID]*claimState
	byClass map[string]map[types.UID]struct{}
	classOf map[types.UID]string
}

func newClaimStates() *claimStates {
	return &claimStates{
		byUID:   map[types.UID]*claimState{},
		byClass: map[string]map[types.UID]struct{}{},
		classOf: map[types.UID]string{},
	}
}

func (s *claimStates) get(uid types.UID) *claimState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byUID[uid]
}

// add adds the state, and returns the one that another worker added before, if there is one.
func (s *claimStates) add(st *claimState) *claimState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.byUID[st.uid]; have != nil {
		return have
	}
	s.byUID[st.uid] = st
	return st
}

// setClass records the class of the claim.
func (s *claimStates) setClass(uid types.UID, class string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.classOf[uid]; ok {
		if old == class {
			return
		}
		s.removeClass(uid, old)
	}
	s.classOf[uid] = class
	if s.byClass[class] == nil {
		s.byClass[class] = map[types.UID]struct{}{}
	}
	s.byClass[class][uid] = struct{}{}
}

func (s *claimStates) removeClass(uid types.UID, class string) {
	delete(s.byClass[class], uid)
	if len(s.byClass[class]) == 0 {
		delete(s.byClass, class)
	}
	delete(s.classOf, uid)
}

func (s *claimStates) withClass(class string) []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	uids := make([]types.UID, 0, len(s.byClass[class]))
	for uid := range s.byClass[class] {
		uids = append(uids, uid)
	}
	return uids
}

func (s *claimStates) all() []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.byUID))
}

func (s *claimStates) remove(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if class, ok := s.classOf[uid]; ok {
		s.removeClass(uid, class)
	}
	delete(s.byUID, uid)
}

// waiting returns how many claims wait and how long the oldest has waited.
func (s *claimStates) waiting(now time.Time) (int, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var longest time.Duration
	for _, st := range s.byUID {
		longest = max(longest, now.Sub(st.since))
	}
	return len(s.byUID), longest
}
