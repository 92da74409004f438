package attacher

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/csipages"
)

// Lister has the calls that list what a driver has published where. A Publisher may implement it.
type Lister interface {
	ListVolumes(context.Context, *csi.ListVolumesRequest, ...grpc.CallOption) (*csi.ListVolumesResponse, error)
}

// publication is a volume that is published to a node, in the driver's own names.
type publication struct{ volume, node string }

// attachmentRef identifies a VolumeAttachment.
type attachmentRef struct {
	name string
	uid  types.UID
}

// verifyPeriodically compares the driver's publications with the VolumeAttachments, if the driver can list them.
func (a *Attacher) verifyPeriodically(ctx context.Context) {
	lister, ok := a.deps.Driver.(Lister)
	if !ok || a.config.VerifyPeriod < 0 {
		return
	}
	timer := a.deps.Clock.NewTimer(a.config.VerifyPeriod)
	defer timer.Stop()
	lists := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		var err error
		if !lists {
			if lists, err = a.canListPublished(ctx); err == nil && !lists {
				return
			}
		}
		if err == nil {
			err = a.verifyOnce(ctx, lister)
		}
		if err != nil && ctx.Err() == nil {
			a.deps.Logger.Warn("failed to verify attachments; retrying", "error", err)
		}
		timer.Reset(a.config.VerifyPeriod)
	}
}

// canListPublished reports whether the driver can list what is published where.
func (a *Attacher) canListPublished(ctx context.Context) (bool, error) {
	has, err := a.capabilities(ctx)
	return has[csi.ControllerServiceCapability_RPC_LIST_VOLUMES] &&
		has[csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES], err
}

// verifyOnce publishes again the volumes that the driver does not list as published, and logs those that others have published. An
// attachment that was created or deleted during the driver's call is left to the next verification: the VolumeAttachments
// are read before and after it.
func (a *Attacher) verifyOnce(ctx context.Context, lister Lister) error {
	before, err := a.attachmentsByPublication(isAttached)
	if err != nil {
		return err
	}
	published, err := a.listPublished(ctx, lister)
	if err != nil {
		return err
	}
	for at, attachment := range before {
		// Also one that the driver does not list at all: to publish what is published changes nothing.
		if !slices.Contains(published[at.volume], at.node) {
			a.markMissing(attachment)
		}
	}
	known, err := a.attachmentsByPublication(func(*storagev1.VolumeAttachment) bool { return true })
	if err != nil {
		return err
	}
	now := make(map[publication]struct{})
	for volume, nodes := range published {
		for _, node := range nodes {
			at := publication{volume, node}
			if _, ok := known[at]; ok {
				continue
			}
			now[at] = struct{}{}
			// Only the second time, because it may have been deleted during the driver's call, and not again later. The
			// attacher does not undo what others did.
			if times := a.unknownPublications[at]; times == 1 {
				a.deps.Logger.Warn("volume is published without a volume attachment; "+
					"unpublish it by the storage's own means if nothing on the node uses it",
					"volume", volume, "node", node)
			}
			a.unknownPublications[at]++
		}
	}
	for at := range a.unknownPublications {
		if _, ok := now[at]; !ok {
			delete(a.unknownPublications, at)
		}
	}
	return nil
}

func isAttached(va *storagev1.VolumeAttachment) bool {
	return va.Status.Attached && va.DeletionTimestamp == nil
}

// attachmentsByPublication returns the driver's VolumeAttachments that match, by what they publish.
func (a *Attacher) attachmentsByPublication(match func(*storagev1.VolumeAttachment) bool) (map[publication]attachmentRef, error) {
	all, err := a.attachments.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list volume attachments: %w", err)
	}
	claims := make(map[publication]attachmentRef)
	for _, va := range all {
		if va.Spec.Attacher != a.config.DriverName || !match(va) {
			continue
		}
		if at := a.publicationOf(va); at.volume != "" && at.node != "" {
			claims[at] = attachmentRef{va.Name, va.UID}
		}
	}
	return claims, nil
}

// publicationOf returns what the VolumeAttachment records and, as far as that is missing, what its PersistentVolume and its CSINode
// say: external-attacher records only the node's ID.
func (a *Attacher) publicationOf(va *storagev1.VolumeAttachment) publication {
	at := publication{va.Annotations[handleAnnotation], va.Annotations[nodeIDAnnotation]}
	if at.volume == "" && slices.Contains(va.Finalizers, a.finalizer) {
		if source, err := a.source(va); err == nil {
			at.volume = source.VolumeHandle
		}
	}
	if at.node == "" {
		at.node, _ = a.nodeID(va.Spec.NodeName)
	}
	return at
}

// listPublished returns the nodes of every volume, as the driver lists them, page by page.
func (a *Attacher) listPublished(ctx context.Context, lister Lister) (map[string][]string, error) {
	nodes := make(map[string][]string)
	err := csipages.Each(func(token string) (string, error) {
		calling, cancel := context.WithTimeout(ctx, a.config.Timeout)
		defer cancel()
		page, err := lister.ListVolumes(calling, &csi.ListVolumesRequest{StartingToken: token})
		for _, entry := range page.GetEntries() {
			id := entry.GetVolume().GetVolumeId()
			nodes[id] = append(nodes[id], entry.GetStatus().GetPublishedNodeIds()...)
		}
		return page.GetNextToken(), err
	})
	if err != nil {
		return nil, fmt.Errorf("list the driver's published volumes: %w", err)
	}
	return nodes, nil
}

// markMissing publishes the attachment again, unless the VolumeAttachment was replaced meanwhile.
func (a *Attacher) markMissing(attachment attachmentRef) {
	a.deps.Logger.Warn("the driver does not list the volume as published to its node; publishing it again", "attachment", attachment.name)
	a.mu.Lock()
	a.missing[attachment.name] = attachment.uid
	a.mu.Unlock()
	a.runner.Enqueue(attachmentKeys(attachment.name)...)
}

// isMissing reports whether the attachment has to be published although its status says that it is.
func (a *Attacher) isMissing(va *storagev1.VolumeAttachment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.missing[va.Name] == va.UID && va.UID != ""
}

// clearMissing undoes markMissing.
func (a *Attacher) clearMissing(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.missing, name)
}
