package timeline

import (
	"container/list"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// DefaultObjects is how many objects a Recorder remembers by default.
	DefaultObjects = 4096
	// maxStages bounds one record. A crash-looping container adds three stages a restart, so this keeps the
	// beginning and the last dozens of attempts.
	maxStages = 192
	// keepFirst is how many of the object's first stages, which show its start, are kept; the rest are the newest.
	keepFirst = 64
	// dropBatch is how many stages are dropped when a record is full, so that not every further stage moves all the others.
	dropBatch = 32
)

// Recorder keeps the records of the objects that changed last. It is safe for concurrent use, and a nil Recorder records
// nothing.
type Recorder struct {
	clock clock.PassiveClock
	limit int

	mu            sync.Mutex // guards all below, and every record's stages
	objects       map[types.UID]*list.Element
	recent        *list.List // of *Record, the least recently changed in front
	watchers      map[wakeup.Signal]struct{}
	subscriptions map[*Subscription]struct{}
	traceOf       func(Ref) string // nil without traces
}

// New returns a Recorder that remembers at most limit objects (DefaultObjects if limit is not positive).
func New(clock clock.PassiveClock, limit int) *Recorder {
	if limit <= 0 {
		limit = DefaultObjects
	}
	return &Recorder{
		clock:         clock,
		limit:         limit,
		objects:       make(map[types.UID]*list.Element),
		recent:        list.New(),
		watchers:      make(map[wakeup.Signal]struct{}),
		subscriptions: make(map[*Subscription]struct{}),
	}
}

// Mark records a stage that has no duration. Marking the same stage, subject and error again while it is the newest of its
// kind changes nothing, so that level-triggered code may mark what it sees. It returns the Span of the new mark, nil if
// nothing was recorded.
func (r *Recorder) Mark(ref Ref, owner, stage, subject string, err error) *Span {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	mark := Stage{Name: stage, Subject: subject, Owner: owner, Start: now, End: now}
	mark.setError(err)
	if last := r.lastStage(ref.UID, stage, subject); last != nil && last.Done() && last.Error == mark.Error {
		return nil
	}
	return &Span{r: r, ref: ref, name: stage, subject: subject, attempt: r.add(ref, mark)}
}

// NameTraces sets how records get the ID of their object's trace: id returns it, empty if the object has none.
func (r *Recorder) NameTraces(id func(Ref) string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.traceOf = id
}

// copyOf returns a copy of a record for a reader. The caller holds mu.
func (r *Recorder) copyOf(element *list.Element) Record {
	record := *element.Value.(*Record)
	record.Stages = slices.Clone(record.Stages)
	if r.traceOf != nil {
		record.Trace = r.traceOf(record.Ref)
	}
	return record
}

// Record returns what is known of the object with this UID.
func (r *Recorder) Record(uid types.UID) (Record, bool) {
	if r == nil {
		return Record{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	element, ok := r.objects[uid]
	if !ok {
		return Record{}, false
	}
	return r.copyOf(element), true
}

// Latest returns the records of the objects of a kind that changed last, at most limit, the newest first.
func (r *Recorder) Latest(kind string, limit int) []Record {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var records []Record
	for element := r.recent.Back(); element != nil && len(records) < limit; element = element.Prev() {
		if element.Value.(*Record).Ref.Kind == kind {
			records = append(records, r.copyOf(element))
		}
	}
	return records
}

// Watch returns a channel that receives a value after something was recorded, and a function that ends the subscription.
// Changes coalesce: a slow reader receives one value for many changes, and never delays a writer.
func (r *Recorder) Watch() (<-chan struct{}, func()) {
	changed := wakeup.NewSignal()
	if r == nil {
		return changed.C(), func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers[changed] = struct{}{}
	return changed.C(), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, changed)
	}
}

// add appends the stage to the object's record, removing old ones first if needed, and returns its attempt. The caller holds mu.
func (r *Recorder) add(ref Ref, stage Stage) int {
	element, ok := r.objects[ref.UID]
	if !ok {
		for r.recent.Len() >= r.limit {
			oldest := r.recent.Front()
			if next := oldest.Next(); next != nil && oldest.Value.(*Record).Ref.Kind == KindCluster {
				oldest = next
			}
			delete(r.objects, oldest.Value.(*Record).Ref.UID)
			r.recent.Remove(oldest)
		}
		element = r.recent.PushBack(&Record{Ref: ref})
		r.objects[ref.UID] = element
	} else {
		r.recent.MoveToBack(element)
	}
	record := element.Value.(*Record)
	stage.Attempt = 1
	if last := r.lastStage(ref.UID, stage.Name, stage.Subject); last != nil {
		stage.Attempt = last.Attempt + 1
	}
	if len(record.Stages) >= maxStages {
		record.Stages = slices.Delete(record.Stages, keepFirst, keepFirst+dropBatch)
		record.Dropped += dropBatch
	}
	record.Stages = append(record.Stages, stage)
	r.notify(record.Ref, &stage)
	return stage.Attempt
}

// lastStage finds the newest stage of that name and subject. The caller holds mu.
func (r *Recorder) lastStage(uid types.UID, name, subject string) *Stage {
	element, ok := r.objects[uid]
	if !ok {
		return nil
	}
	stages := element.Value.(*Record).Stages
	for i := len(stages) - 1; i >= 0; i-- {
		if stages[i].Name == name && stages[i].Subject == subject {
			return &stages[i]
		}
	}
	return nil
}

// notify notifies the subscribers. The caller holds mu.
func (r *Recorder) notify(ref Ref, stage *Stage) {
	for changed := range r.watchers {
		changed.Notify()
	}
	for sub := range r.subscriptions {
		sub.add(Change{Ref: ref, Stage: *stage})
	}
}

// Subscription delivers each change to one reader. It uses memory only while changes wait.
type Subscription struct {
	r       *Recorder
	limit   int
	changed wakeup.Signal

	// Guarded by r.mu.
	pending []Change
	dropped int
}

// Subscribe keeps every change from now on for one reader, which receives from C and then calls Drain. At most limit
// changes wait for a busy reader; further ones are lost to this reader and counted, so that a slow reader never delays a
// writer. Stop must be called in the end. A nil Recorder delivers nothing.
func (r *Recorder) Subscribe(limit int) *Subscription {
	sub := &Subscription{r: r, limit: max(limit, 1), changed: wakeup.NewSignal()}
	if r == nil {
		return sub
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscriptions[sub] = struct{}{}
	return sub
}

// Subscriptions returns how many subscriptions have not been stopped.
func (r *Recorder) Subscriptions() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.subscriptions)
}

// add keeps a change for the reader. The caller holds r.mu.
func (s *Subscription) add(change Change) {
	if len(s.pending) >= s.limit {
		s.dropped++
		return
	}
	s.pending = append(s.pending, change)
	s.changed.Notify()
}

// C receives a value when Drain has something to return. It is not closed by Stop.
func (s *Subscription) C() <-chan struct{} { return s.changed.C() }

// Drain returns the changes since the last call, in order, and does not wait. The slice is the caller's.
func (s *Subscription) Drain() []Change {
	if s.r == nil {
		return nil
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	taken := s.pending
	s.pending = nil
	return taken
}

// Dropped returns how many changes were lost because the reader was too slow.
func (s *Subscription) Dropped() int {
	if s.r == nil {
		return 0
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.dropped
}

// Stop ends the delivery.
func (s *Subscription) Stop() {
	if s.r == nil {
		return
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	delete(s.r.subscriptions, s)
}
