package csi

import (
	"context"
	"fmt"
	"sync"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/listwatch"
)

// checkDetached returns an error if the volume is still attached: CSI leaves that order to its callers.
//
// If the watch of NotifyDetached shows an attachment, the end of it will retry the deletion. Otherwise the attachments are
// listed: the watch may lack the newest VolumeAttachment, and a deleted volume cannot be restored.
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

// NotifyDeletable implements provision.DeletionNotifier: a volume that was still attached may be deleted when one of its
// VolumeAttachments is deleted.
func (p *Provisioner) NotifyDeletable(ctx context.Context, notify func(volume string)) error {
	return p.NotifyDetached(ctx, notify)
}

// NotifyDetached implements resize.Driver.
func (p *Provisioner) NotifyDetached(ctx context.Context, notify func(volume string)) error {
	source := listwatch.New(p.client.StorageV1().VolumeAttachments(), p.client)
	store := &attachmentStore{driver: p.config.Name, notify: notify, known: p.attached}
	defer p.attached.clear() // without a watch they would keep volumes from deletion for ever
	cache.NewReflectorWithOptions(source, &storagev1.VolumeAttachment{}, store, cache.ReflectorOptions{}).RunWithContext(ctx)
	return nil
}

// attachment is the volume and the node of a VolumeAttachment.
type attachment struct{ volume, node string }

// attachmentOf returns the attachment if it is of a PersistentVolume of the driver.
func attachmentOf(obj any, driver string) (attachment, bool) {
	a, ok := obj.(*storagev1.VolumeAttachment)
	if !ok || a.Spec.Attacher != driver || a.Spec.Source.PersistentVolumeName == nil {
		return attachment{}, false
	}
	return attachment{*a.Spec.Source.PersistentVolumeName, a.Spec.NodeName}, true
}

// attachments holds the watched VolumeAttachments of one driver. It is safe for concurrent use.
type attachments struct {
	mu sync.Mutex
	// byName has them by name; byVolume has the names by volume, which may be attached to several nodes.
	byName   map[string]attachment
	byVolume map[string]map[string]bool
}

func newAttachments() *attachments {
	return &attachments{byName: map[string]attachment{}, byVolume: map[string]map[string]bool{}}
}

// node returns a node to which the volume is attached.
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

// remove removes an attachment and returns its volume.
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

// notListed returns the known names that are not in the list.
func (a *attachments) notListed(listed map[string]bool) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []string
	for name := range a.byName {
		if !listed[name] {
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

// attachmentStore is the store of a reflector of VolumeAttachments. It keeps the volumes and nodes of its driver's only: a
// cluster may have very many. The reflector calls it from one goroutine.
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

// remove notifies that the volume is detached.
func (d *attachmentStore) remove(name string) {
	if volume, ok := d.known.remove(name); ok {
		d.notify(volume)
	}
}

// Replace implements cache.ReflectorStore: what is not listed any more was deleted during a gap in the watch. A listed name
// may be that of a new object.
func (d *attachmentStore) Replace(list []any, _ string) error {
	listed := make(map[string]bool, len(list))
	for _, obj := range list {
		if a, ok := obj.(*storagev1.VolumeAttachment); ok {
			listed[a.Name] = true
		}
	}
	for _, name := range d.known.notListed(listed) {
		d.remove(name)
	}
	for _, obj := range list {
		if err := d.Add(obj); err != nil {
			return err
		}
	}
	return nil
}

// Resync implements cache.ReflectorStore. It does nothing.
func (d *attachmentStore) Resync() error { return nil }

// attachmentLister lists VolumeAttachments. The API cannot select those of one volume, so each request lists all. One list
// serves all callers that came before it was requested, so that the number of requests depends on how long one takes and
// not on how many volumes are deleted at once.
type attachmentLister struct {
	client kubernetes.Interface
	driver string

	mu sync.Mutex
	// next is the list that has not been requested yet, nil if no caller waits.
	next *sharedList
	// slot has a value unless a request is in progress.
	slot chan struct{}
}

// sharedList is one list of VolumeAttachments. Its fields may be read when done is closed: nodes has a node of each volume
// that is attached; expired is set if the context of the caller that requested it ended.
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

// node returns a node to which the volume is attached, from a list that was requested after the call began.
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
			continue // the context of another caller ended
		}
		node, attached = mine.nodes[volume]
		return node, attached, mine.err
	}
}

// run requests the list when the request before it is done. Callers that come until then share it.
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
	// Without a resource version the list is not older than the request.
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
