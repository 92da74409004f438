package csi

import (
	"context"
	"fmt"
	"sync"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// checkDetached refuses to delete what is still attached: CSI leaves that order to us.
//
// That a volume is attached, the watch of WakeDeletions knows, and its end will wake the deletion. That it is not is looked
// up in the API: the watch may not have heard of the newest VolumeAttachment yet, and what is deleted does not come back.
func (p *Provisioner) checkDetached(ctx context.Context, name string) error {
	node, attached := p.attached.node(name)
	if !attached {
		var err error
		if node, attached, err = p.attachmentLister.node(ctx, name); err != nil {
			return err
		}
	}
	if attached {
		return fmt.Errorf("it is still attached to node %q", node)
	}
	return nil
}

// WakeDeletions implements provision.DeletionWaker: a volume that was still attached may be deleted when one of its
// VolumeAttachments is gone.
func (p *Provisioner) NotifyDeletable(ctx context.Context, wake func(volume string)) error {
	api := p.client.StorageV1().VolumeAttachments()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.Watch(ctx, o)
		},
	}
	heard := &attachmentStore{driver: p.config.Name, notify: wake, known: p.attached}
	defer p.attached.clear() // what nobody follows any more holds no volume
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, p.client),
		&storagev1.VolumeAttachment{}, heard, cache.ReflectorOptions{}).RunWithContext(ctx)
	return nil
}

// attachment is what a VolumeAttachment attaches, and where.
type attachment struct{ volume, node string }

// attachmentOf is that of an attachment of a driver's PersistentVolume; false for any other.
func attachmentOf(obj any, driver string) (attachment, bool) {
	a, ok := obj.(*storagev1.VolumeAttachment)
	if !ok || a.Spec.Attacher != driver || a.Spec.Source.PersistentVolumeName == nil {
		return attachment{}, false
	}
	return attachment{*a.Spec.Source.PersistentVolumeName, a.Spec.NodeName}, true
}

// attachments has the VolumeAttachments of one driver that were heard of. It is safe for concurrent use.
type attachments struct {
	mu sync.Mutex
	// byName are by the name of the VolumeAttachment, names by that of the volume: a volume may be on several nodes.
	byName   map[string]attachment
	byVolume map[string]map[string]bool
}

func newAttachments() *attachments {
	return &attachments{byName: map[string]attachment{}, byVolume: map[string]map[string]bool{}}
}

// node is one to which the volume is attached.
func (a *attachments) node(volume string) (node string, attached bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.byVolume[volume] {
		return a.byName[name].node, true
	}
	return "", false
}

func (a *attachments) add(name string, at attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byName[name] = at
	if a.byVolume[at.volume] == nil {
		a.byVolume[at.volume] = map[string]bool{}
	}
	a.byVolume[at.volume][name] = true
}

// remove returns the volume whose attachment it was.
func (a *attachments) remove(name string) (volume string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.byName[name]
	if !ok {
		return "", false
	}
	delete(a.byName, name)
	delete(a.byVolume[at.volume], name)
	if len(a.byVolume[at.volume]) == 0 {
		delete(a.byVolume, at.volume)
	}
	return at.volume, true
}

// notListed are the names known that are not there any more.
func (a *attachments) notListed(there map[string]bool) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []string
	for name := range a.byName {
		if !there[name] {
			names = append(names, name)
		}
	}
	return names
}

func (a *attachments) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.byName)
	clear(a.byVolume)
}

// attachmentStore hears of all VolumeAttachments and remembers only where its driver's are: a cluster may have very many. The
// reflector, its one caller, calls it from one goroutine.
type attachmentStore struct {
	driver string
	notify func(volume string)
	known  *attachments
}

var _ cache.ReflectorStore = (*attachmentStore)(nil)

// Add implements cache.ReflectorStore.
func (d *attachmentStore) Add(obj any) error {
	if at, ok := attachmentOf(obj, d.driver); ok {
		d.known.add(obj.(*storagev1.VolumeAttachment).Name, at)
	}
	return nil
}

// Update implements cache.ReflectorStore. What a VolumeAttachment is for cannot change.
func (d *attachmentStore) Update(obj any) error { return d.Add(obj) }

// Delete implements cache.ReflectorStore.
func (d *attachmentStore) Delete(obj any) error {
	if a, ok := obj.(*storagev1.VolumeAttachment); ok {
		d.remove(a.Name)
	}
	return nil
}

// remove wakes when the volume is known to be detached, not before.
func (d *attachmentStore) remove(name string) {
	if volume, ok := d.known.remove(name); ok {
		d.notify(volume)
	}
}

// Replace implements cache.ReflectorStore: after a gap in the watch, what is not listed any more is gone. A name that is
// listed may be another's by now.
func (d *attachmentStore) Replace(list []any, _ string) error {
	there := make(map[string]bool, len(list))
	for _, obj := range list {
		if a, ok := obj.(*storagev1.VolumeAttachment); ok {
			there[a.Name] = true
		}
	}
	for _, name := range d.known.notListed(there) {
		d.remove(name)
	}
	for _, obj := range list {
		if err := d.Add(obj); err != nil {
			return err
		}
	}
	return nil
}

// Resync implements cache.ReflectorStore; nothing is ever repeated.
func (d *attachmentStore) Resync() error { return nil }

// attachmentLister looks up in the API whether volumes are attached. There is no way to ask for the attachments of one volume, so
// that each answer is all of them; it serves everybody who asked before the question was put, so that the number of
// questions follows from how long one takes, not from how many volumes are deleted at once.
type attachmentLister struct {
	client kubernetes.Interface
	driver string

	mu sync.Mutex
	// next is the question that has not been put yet, nil if nobody waits.
	next *sharedList
	// slot has a value unless a question is under way.
	slot chan struct{}
}

// sharedList is one question. The rest may be read when it is done: nodes has one of each volume that is attached; cut says that
// the time of the one who put it was up.
type sharedList struct {
	done    chan struct{}
	nodes   map[string]string
	err     error
	expired bool
}

func newAttachmentLister(client kubernetes.Interface, driver string) *attachmentLister {
	l := &attachmentLister{client: client, driver: driver, slot: make(chan struct{}, 1)}
	l.slot <- struct{}{}
	return l
}

// node is one to which the volume is attached, as of after the call began.
func (l *attachmentLister) node(ctx context.Context, volume string) (node string, attached bool, err error) {
	for {
		l.mu.Lock()
		mine := l.next
		first := mine == nil
		if first {
			mine = &sharedList{done: make(chan struct{})}
			l.next = mine
		}
		l.mu.Unlock()
		if first {
			l.run(ctx, mine)
		}
		select {
		case <-mine.done:
		case <-ctx.Done():
			return "", false, fmt.Errorf("list volume attachments: %w", ctx.Err())
		}
		if mine.expired && ctx.Err() == nil {
			continue // it was another's time that was up
		}
		node, attached = mine.nodes[volume]
		return node, attached, mine.err
	}
}

// run waits for its turn and asks. Whoever comes until then waits for the same answer.
func (l *attachmentLister) run(ctx context.Context, mine *sharedList) {
	defer close(mine.done)
	taken := false
	select {
	case <-l.slot:
		taken = true
	case <-ctx.Done():
	}
	l.mu.Lock()
	l.next = nil
	l.mu.Unlock()
	if !taken {
		mine.err, mine.expired = fmt.Errorf("list volume attachments: %w", ctx.Err()), true
		return
	}
	defer func() { l.slot <- struct{}{} }()
	// Without a resource version the answer is not older than the question.
	list, err := l.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		mine.err, mine.expired = fmt.Errorf("list volume attachments: %w", err), ctx.Err() != nil
		return
	}
	mine.nodes = map[string]string{}
	for i := range list.Items {
		if at, ok := attachmentOf(&list.Items[i], l.driver); ok {
			mine.nodes[at.volume] = at.node
		}
	}
}
