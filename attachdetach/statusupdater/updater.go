package statusupdater

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-dev/berth/attachdetach/cache"
)

// NodeStatusUpdater writes what the actual state of the world wants reported. It makes no call for a node that is not
// flagged there. A node that does not exist (any more) is no error; after any other failure the node is flagged anew.
// Calls for different nodes may run at the same time, calls for one node must not.
type NodeStatusUpdater interface {
	// UpdateNodeStatuses writes the statuses of all flagged nodes. One that fails does not keep the others back; the
	// error says how many failed.
	UpdateNodeStatuses(ctx context.Context) error
	// UpdateNodeStatusForNode writes the status of the node, if it is flagged.
	UpdateNodeStatusForNode(ctx context.Context, node types.NodeName) error
}

// forgetter is an actual state of the world that keeps a node until its status is written.
type forgetter interface{ ForgetNode(types.NodeName) }

// Updater is a NodeStatusUpdater that patches the API server.
type Updater struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	actual cache.ActualStateOfWorld
}

var _ NodeStatusUpdater = (*Updater)(nil)

// NewNodeStatusUpdater returns an Updater. Without a lister it reads from the API server whether a node exists.
func NewNodeStatusUpdater(
	client kubernetes.Interface, nodes corelisters.NodeLister, actual cache.ActualStateOfWorld,
) *Updater {
	return &Updater{client: client, nodes: nodes, actual: actual}
}

// UpdateNodeStatuses implements NodeStatusUpdater.
func (u *Updater) UpdateNodeStatuses(ctx context.Context) error {
	failed := 0
	var last error
	for node, volumes := range u.actual.GetVolumesToReportAttached() {
		if err := u.update(ctx, node, volumes); err != nil {
			failed++
			last = err
		}
	}
	if failed > 0 {
		return fmt.Errorf("unable to update %d nodes, the last: %w", failed, last)
	}
	return nil
}

// UpdateNodeStatusForNode implements NodeStatusUpdater.
func (u *Updater) UpdateNodeStatusForNode(ctx context.Context, node types.NodeName) error {
	flagged, volumes := u.actual.GetVolumesToReportAttachedForNode(node)
	if !flagged {
		return nil
	}
	return u.update(ctx, node, volumes)
}

// update writes the list, whatever a cache may hold: equal to a stale copy is not equal to what is stored.
func (u *Updater) update(ctx context.Context, node types.NodeName, volumes []corev1.AttachedVolume) error {
	err := u.write(ctx, node, volumes)
	if err != nil {
		u.actual.SetNodeStatusUpdateNeeded(node)
		return fmt.Errorf("write volumes attached to node %q: %w", node, err)
	}
	if f, ok := u.actual.(forgetter); ok {
		f.ForgetNode(node)
	}
	return nil
}

func (u *Updater) write(ctx context.Context, node types.NodeName, volumes []corev1.AttachedVolume) error {
	if u.nodes != nil {
		switch _, err := u.nodes.Get(string(node)); {
		case apierrors.IsNotFound(err):
			return nil // the event of its coming back flags it again
		case err != nil:
			return err
		}
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": volumes}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = u.client.CoreV1().Nodes().Patch(ctx, string(node), types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
