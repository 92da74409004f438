package volumebinding

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	storage "k8s.io/component-helpers/storage/volume"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding/metrics"
)

// inTree begins the names of the provisioners whose volumes upstream translates
// before it compares them with a node.
const inTree = "kubernetes.io/"

// binder is upstream's binder with a wait of its own. It is safe for concurrent use.
type binder struct {
	upstream.SchedulerVolumeBinder

	client  kubernetes.Interface
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	pods    corelisters.PodLister
	nodes   corelisters.NodeLister
	classes storagelisters.StorageClassLister
	waiters *waiters
	timeout time.Duration // of one Pod's wait
}

// newBinder wraps inner. The owner of factory starts it afterwards.
func newBinder(inner upstream.SchedulerVolumeBinder, client kubernetes.Interface,
	factory informers.SharedInformerFactory, timeout time.Duration,
) (*binder, error) {
	core := factory.Core().V1()
	b := &binder{
		SchedulerVolumeBinder: inner,
		client:                client,
		claims:                core.PersistentVolumeClaims().Lister(),
		volumes:               core.PersistentVolumes().Lister(),
		pods:                  core.Pods().Lister(),
		nodes:                 core.Nodes().Lister(),
		classes:               factory.Storage().V1().StorageClasses().Lister(),
		waiters:               newWaiters(),
		timeout:               timeout,
	}
	if err := b.waiters.subscribe(factory); err != nil {
		return nil, fmt.Errorf("watch volumes being bound: %w", err)
	}
	return b, nil
}

// BindPodVolumes writes the selected node into the Pod's claims, for the provisioners,
// and waits until the claims are bound. An error returns the Pod to the queue; the
// framework then calls Unreserve, which reverts what was assumed.
func (b *binder) BindPodVolumes(ctx context.Context, pod *corev1.Pod, volumes *upstream.PodVolumes) (err error) {
	if !b.onlyProvisions(volumes) {
		return b.SchedulerVolumeBinder.BindPodVolumes(ctx, pod, volumes)
	}
	defer func() {
		if err != nil {
			metrics.VolumeSchedulingStageFailed.WithLabelValues("bind").Inc()
		}
	}()
	wake, release := b.waiters.add(topics(pod, volumes))
	defer release()
	claims, err := b.selectNode(ctx, volumes)
	if err != nil {
		return err
	}
	if err := b.wait(ctx, wake, pod, claims); err != nil {
		return fmt.Errorf("binding volumes: %w", err)
	}
	return nil
}

// onlyProvisions reports whether volumes needs nothing but new volumes of provisioners
// outside of Kubernetes' own controllers.
func (b *binder) onlyProvisions(volumes *upstream.PodVolumes) bool {
	if len(volumes.StaticBindings) > 0 || len(volumes.DynamicProvisions) == 0 {
		return false
	}
	for _, provision := range volumes.DynamicProvisions {
		class, err := b.classes.Get(storage.GetPersistentVolumeClaimClass(provision.PVC))
		if err != nil || strings.HasPrefix(class.Provisioner, inTree) {
			return false
		}
	}
	return true
}

// topics returns the objects that allBound reads.
func topics(pod *corev1.Pod, volumes *upstream.PodVolumes) []topic {
	all := []topic{
		{podKind, cache.MetaObjectToName(pod).String()},
		{nodeKind, pod.Spec.NodeName},
	}
	for _, provision := range volumes.DynamicProvisions {
		all = append(all, topic{claimKind, cache.MetaObjectToName(provision.PVC).String()})
	}
	return all
}

// selectNode writes the claims, which carry the chosen node since they were
// assumed, and returns them as the API server has them.
func (b *binder) selectNode(ctx context.Context, volumes *upstream.PodVolumes) ([]*corev1.PersistentVolumeClaim, error) {
	written := make([]*corev1.PersistentVolumeClaim, 0, len(volumes.DynamicProvisions))
	for _, provision := range volumes.DynamicProvisions {
		claim := provision.PVC
		now, err := b.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
		if err != nil {
			return nil, fmt.Errorf("select a node for claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		written = append(written, now)
	}
	return written, nil
}

func (b *binder) wait(ctx context.Context, wake <-chan struct{}, pod *corev1.Pod, claims []*corev1.PersistentVolumeClaim) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	for {
		if bound, err := b.allBound(pod, claims); bound || err != nil {
			return err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// allBound reports whether claims are bound to volumes that pod's node reaches. An
// error means that they will not be, or not for this Pod.
func (b *binder) allBound(pod *corev1.Pod, claims []*corev1.PersistentVolumeClaim) (bool, error) {
	node, err := b.nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return false, fmt.Errorf("get node %q: %w", pod.Spec.NodeName, err)
	}
	current, err := b.pods.Pods(pod.Namespace).Get(pod.Name)
	if err != nil {
		return false, fmt.Errorf("pod %s/%s is gone: %w", pod.Namespace, pod.Name, err)
	}
	if current.UID != pod.UID {
		return false, fmt.Errorf("pod %s/%s was deleted and another has its name", pod.Namespace, pod.Name)
	}
	for _, claim := range claims {
		if bound, err := b.bound(claim, node); !bound || err != nil {
			return false, err
		}
	}
	return true, nil
}

// bound is allBound for one claim; written is the claim as selectNode wrote it.
func (b *binder) bound(written *corev1.PersistentVolumeClaim, node *corev1.Node) (bool, error) {
	claim, err := b.claims.PersistentVolumeClaims(written.Namespace).Get(written.Name)
	if err != nil {
		return false, fmt.Errorf("get claim %s/%s: %w", written.Namespace, written.Name, err)
	}
	order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, written.ResourceVersion)
	if err != nil {
		return false, fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	if order < 0 {
		return false, nil // our own write is not in the cache yet
	}
	if claim.Annotations[storage.AnnSelectedNode] != node.Name {
		// The provisioner rejects the node this way: another one may fit the Pod.
		return false, fmt.Errorf("claim %s/%s was not provisioned on node %q: its provisioner removed the selected node",
			claim.Namespace, claim.Name, node.Name)
	}
	if claim.Spec.VolumeName == "" {
		return false, nil
	}
	volume, err := b.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return false, nil // the claim's event overtook the volume's
	}
	if err != nil {
		return false, fmt.Errorf("get volume %q: %w", claim.Spec.VolumeName, err)
	}
	if err := storage.CheckNodeAffinity(volume, node.Labels); err != nil {
		return false, fmt.Errorf("volume %q is not accessible from node %q: %w", volume.Name, node.Name, err)
	}
	return metav1.HasAnnotation(claim.ObjectMeta, storage.AnnBindCompleted), nil
}
