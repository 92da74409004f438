package page

import (
	"context"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/timeline"
)

// hub has what all open pages share: the cluster's objects and the records of what happened to them. It exists from the first
// page until a while after the last, so that nothing is read while no page is open. It has many methods
// because each view reads the same objects, records and versions under its locks.
type hub struct {
	source    explain.Source
	informers *informerSet
	records   Records // nil without a running berth
	command   func(string) string
	cancel    context.CancelFunc
	usage     *usage
	namespace string        // the only one that is shown; empty for all
	answered  wakeup.Signal // is set when a record was read without the stream of changes

	mu        sync.Mutex // guards all below
	versions  versions
	listeners map[wakeup.Signal]struct{}
	known     map[types.UID]timeline.Record
	streaming bool // each change of a record arrives, so known is current

	rowsMu sync.Mutex // held while rows are explained, so that pages share the work
	rows   map[types.UID]*row
}

// row is an object of a list with its explanation.
type row struct {
	explanation *explain.Explanation
	version     uint64
	at          time.Time
	html, age   string
}

// item is the row as an element of a list.
func (r *row) item() item {
	return item{ID: rowID(r.explanation.Object.UID), HTML: r.html, Age: r.age}
}

func rowID(uid types.UID) string { return "r" + string(uid) }

// syncTimeout bounds how long a first page waits for lists; what has none by then is read directly.
const syncTimeout = 5 * time.Second

// newHub starts a hub, which runs until close.
func newHub(ctx context.Context, deps Deps, config Config) (*hub, error) {
	client, err := deps.Connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	h := &hub{
		records: deps.Records, command: config.Command, namespace: config.Namespace, cancel: cancel, answered: wakeup.NewSignal(),
		listeners: make(map[wakeup.Signal]struct{}), known: make(map[types.UID]timeline.Record), rows: make(map[types.UID]*row),
	}
	if h.informers, err = newInformerSet(client, config.Namespace, h.objectChanged); err != nil {
		cancel()
		return nil, err
	}
	h.source = explain.Source{Client: cachedClient{client, h.informers}, Network: deps.Network, Clock: deps.Clock}
	h.usage = newUsage(client)
	go contain.Guard("page.usage", "", func() { h.usage.follow(ctx, deps.Clock.Now, func() { h.bump() }) })()
	if deps.Records != nil {
		h.source.Records = h
		go contain.Guard("page.stages", "", func() { h.follow(ctx) })()
	}
	wait, stop := context.WithTimeout(ctx, syncTimeout)
	defer stop()
	h.informers.start(ctx, wait)
	return h, nil
}

// close stops the hub and joins its informers.
func (h *hub) close() {
	h.cancel()
	h.informers.factory.Shutdown()
}

// follow keeps the records current until ctx ends. When the running berth ends, each record is read anew, until one can be read again:
// then there is a berth that has a stream.
func (h *hub) follow(ctx context.Context) {
	for {
		_ = h.records.Stages(ctx, "", func() { h.setStreaming(true) }, h.stageChanged)
		h.setStreaming(false)
		select {
		case <-ctx.Done():
			return
		case <-h.answered.C():
		}
	}
}

// stageChanged notes that a record has changed.
func (h *hub) stageChanged(change timeline.Change) {
	h.mu.Lock()
	defer h.mu.Unlock() // at once, or a read that is going on would keep the old record
	delete(h.known, change.Ref.UID)
	switch {
	case change.Ref.UID == "": // changes were lost, of unknown objects
		h.versions.raiseAll()
		clear(h.known)
	case h.versions.raise(change.Ref.UID):
		clear(h.known)
	}
	notify(h.listeners)
}

func (h *hub) setStreaming(streaming bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streaming = streaming
	clear(h.known)
	if streaming { // what changed until now was missed
		h.versions.raiseAll()
		notify(h.listeners)
	}
}

// Record implements explain.Records: it reads each record once for each change.
func (h *hub) Record(ctx context.Context, uid types.UID) (timeline.Record, bool, error) {
	version := h.version(uid)
	h.mu.Lock()
	record, ok := h.known[uid]
	h.mu.Unlock()
	if ok {
		return record, len(record.Stages) > 0, nil
	}
	record, found, err := h.records.Record(ctx, uid)
	if err != nil {
		return record, found, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.streaming:
		h.answered.Notify()
	case h.versions.get(uid) == version:
		h.known[uid] = record
	}
	return record, found, nil
}

// objectChanged notes which explanations the changed object is a part of.
func (h *hub) objectChanged(changed any) {
	switch o := changed.(type) {
	case *corev1.Event:
		h.bump(o.InvolvedObject.UID)
	case *corev1.Pod:
		uids := []types.UID{o.UID}
		if owner := metav1.GetControllerOf(o); owner != nil {
			uids = append(uids, owner.UID)
		}
		h.bump(append(uids, h.claimsOf(o)...)...)
	case *corev1.PersistentVolumeClaim:
		h.bump(append(h.podsWith(o), o.UID)...)
	case *discoveryv1.EndpointSlice:
		if owner := metav1.GetControllerOf(o); owner != nil {
			h.bump(owner.UID)
		}
	case *appsv1.ReplicaSet:
		uids := []types.UID{o.UID}
		if owner := metav1.GetControllerOf(o); owner != nil {
			uids = append(uids, owner.UID)
		}
		h.bump(uids...)
	case metav1.Object:
		h.bump(o.GetUID())
	}
}

// podsWith returns the Pods that use the claim, by its name.
func (h *hub) podsWith(claim *corev1.PersistentVolumeClaim) []types.UID {
	var uids []types.UID
	h.eachPod(claim.Namespace, func(pod *corev1.Pod) {
		if slices.Contains(claimNames(pod), claim.Name) {
			uids = append(uids, pod.UID)
		}
	})
	return uids
}

// claimsOf returns the Pod's claims.
func (h *hub) claimsOf(pod *corev1.Pod) []types.UID {
	var uids []types.UID
	store := h.informers.of[claims].GetIndexer()
	for _, name := range claimNames(pod) {
		if claim, err := get[corev1.PersistentVolumeClaim](store, claims, pod.Namespace, name); err == nil {
			uids = append(uids, claim.UID)
		}
	}
	return uids
}

// claimNames returns the names of the Pod's claims.
func claimNames(pod *corev1.Pod) []string {
	var names []string
	for _, volume := range pod.Spec.Volumes {
		switch {
		case volume.PersistentVolumeClaim != nil:
			names = append(names, volume.PersistentVolumeClaim.ClaimName)
		case volume.Ephemeral != nil:
			names = append(names, pod.Name+"-"+volume.Name)
		}
	}
	return names
}

// eachPod calls fn for the Pods of a namespace, of all if it is empty.
func (h *hub) eachPod(namespace string, fn func(pod *corev1.Pod)) {
	for _, found := range listAll(h.informers.of[pods].GetIndexer(), namespace) {
		fn(found.(*corev1.Pod))
	}
}

func listAll(store cache.Indexer, namespace string) []any {
	if namespace == "" {
		return store.List()
	}
	found, err := store.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil // the index exists
	}
	return found
}

// bump notes a change of the objects, and wakes the pages.
func (h *hub) bump(uids ...types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, uid := range uids {
		if h.versions.raise(uid) {
			clear(h.known)
		}
	}
	notify(h.listeners)
}

func notify(listeners map[wakeup.Signal]struct{}) {
	for listener := range listeners {
		listener.Notify()
	}
}

// listen returns a signal that is set at each change, and a function that ends that.
func (h *hub) listen() (wakeup.Signal, func()) {
	changed := wakeup.NewSignal()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners[changed] = struct{}{}
	return changed, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.listeners, changed)
	}
}

func (h *hub) version(uid types.UID) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.versions.get(uid)
}

// rowLifetime is how long a row's sentence is shown unchanged, because it contains times, and maxRowLifetime that of a row whose object
// has waited for long.
const rowLifetime, maxRowLifetime = 10 * time.Second, time.Minute

// lifetime returns how long the row is shown unchanged: a tenth of the time that its sentence is about.
func (r *row) lifetime(now time.Time) time.Duration {
	if r.explanation.Since.IsZero() {
		return rowLifetime
	}
	return min(max(now.Sub(r.explanation.Since)/10, rowLifetime), maxRowLifetime)
}

// explainRow returns the row of an object, explained again only after a change or its lifetime. The caller holds rowsMu.
func (h *hub) explainRow(ctx context.Context, of explain.Candidate, now time.Time) *row {
	version := h.version(of.UID)
	if known := h.rows[of.UID]; known != nil && known.version == version && now.Sub(known.at) < known.lifetime(now) {
		return known
	}
	explanation, err := h.explain(ctx, of.Kind, of.Namespace, of.Name)
	if err != nil {
		return nil // it has gone meanwhile
	}
	fresh := &row{explanation: explanation, version: version, at: now}
	view := newRowView(explanation, rowID(of.UID), now)
	fresh.html = fragmentHTML("row", view)
	if view.Since != nil {
		fresh.age = view.Since.Age
	}
	h.rows[of.UID] = fresh
	return fresh
}

// explain explains one object, with commands for this cluster.
func (h *hub) explain(ctx context.Context, kind, namespace, name string) (*explain.Explanation, error) {
	explanation, err := explain.Explain(ctx, h.source, kind, namespace, name)
	if err == nil && h.command != nil {
		explanation.Next = h.command(explanation.Next)
	}
	return explanation, err
}
