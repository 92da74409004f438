package provision

import (
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/timeline"
)

// outcome is what is known of the volume of a claim that has no PersistentVolume yet.
type outcome int

const (
	// outcomeNone: no volume exists and none is being made.
	outcomeNone outcome = iota
	// outcomeUnknown: a volume may exist: a call left work in the background, its answer was lost, or an
	// earlier process wrote the intent and was not heard of since.
	outcomeUnknown
)

// intent is what is known of our finalizer on the claim, beyond what the cache shows.
type intent int

const (
	intentFromCache intent = iota
	intentWritten
	intentRemoved
)

// saving is the progress of saving (or, that failing, of deleting) the volume that a call returned.
type saving struct {
	volume  *corev1.PersistentVolume
	backoff wait.Backoff
	tries   int
	// notBefore ends the pause after a failed try.
	notBefore time.Time
	// cleaning is set once saving was given up and the volume is being deleted.
	cleaning bool
	// cause is the last error of saving.
	cause error
	span  *timeline.Span
}

// claimState is what the controller remembers of one claim between two looks at it. All of it can be
// lost: the intent on the claim and the idempotence of the provisioner bring it back.
//
// mu guards everything below it. The decide workers hold it during a whole look, API writes included; call
// workers hold it only to take their input and to leave their result, with calling set in between.
type claimState struct {
	uid types.UID
	ref timeline.Ref
	// since is when the claim was first seen waiting.
	since time.Time
	// resync is set when the informer repeats the claim unchanged.
	resync atomic.Bool

	mu      sync.Mutex
	outcome outcome
	intent  intent
	retry   retry
	// calling is set while a call worker has the claim; nothing else may be done for it then.
	calling bool
	// forgotten is set once the state is no more the claim's; whoever waited for mu meanwhile looks for the one that is.
	forgotten bool
	// called is set while the call itself goes on: then the claim waits for the provisioner and for no write.
	called bool
	// claim, class and node are what the unfinished attempt was begun with. Calls repeat with them.
	claim *corev1.PersistentVolumeClaim
	class *storagev1.StorageClass
	node  *corev1.Node
	// found is the claim that an intent of an earlier process was found on: all that there is to finish its work with if
	// somebody takes the intent away by hand, and with it the claim.
	found *corev1.PersistentVolumeClaim
	// save is set from a successful call until the volume is saved or deleted again.
	save *saving
	// saved is when the volume was saved, zero if the cache has shown it since.
	saved     time.Time
	savedName string
	// binding is set from when the volume is saved until the claim is Bound; then bound is when it was seen to be.
	binding bool
	bound   time.Time
	// tidying is set once the removal of the intent has given way long enough.
	tidying bool
	// ignored is set if the provisioner said that the claim is somebody else's.
	ignored bool
	// began is when the call that returned the volume began.
	began  time.Time
	queued *timeline.Span
}

// blocksOnWrites returns whether only writes to the API keep the claim from being Bound.
func (st *claimState) blocksOnWrites() bool {
	switch {
	case st.calling:
		return !st.called
	case st.save != nil:
		return st.save.tries == 0 && !st.save.cleaning
	}
	return st.binding
}

// boundElsewhere returns whether the claim asks for another volume than the one that was made for it.
func (st *claimState) boundElsewhere(claim *corev1.PersistentVolumeClaim) bool {
	name := claim.Spec.VolumeName
	return name != "" && name != st.savedName && name != volumeNamePrefix+string(st.uid)
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

// add returns the state to go on with: another worker may have been quicker.
func (s *claimStates) add(st *claimState) *claimState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.byUID[st.uid]; have != nil {
		return have
	}
	s.byUID[st.uid] = st
	return st
}

// setClass notes which class the claim waits with.
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

func (s *claimStates) remove(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if class, ok := s.classOf[uid]; ok {
		s.removeClass(uid, class)
	}
	delete(s.byUID, uid)
}

// waiting returns how many claims are remembered and how long the oldest has waited.
func (s *claimStates) waiting(now time.Time) (int, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var longest time.Duration
	for _, st := range s.byUID {
		longest = max(longest, now.Sub(st.since))
	}
	return len(s.byUID), longest
}
