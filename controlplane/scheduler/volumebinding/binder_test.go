package volumebinding

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	storage "k8s.io/component-helpers/storage/volume"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/utils/ptr"
)

// waitTimeout is how long a test waits for what must come at once.
const waitTimeout = time.Minute

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "space", Name: "pod", UID: "pod-1"},
		Spec:       corev1.PodSpec{NodeName: "node"},
	}
}

func testNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"zone": "here"}}}
}

func testClass(provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class"}, Provisioner: provisioner}
}

// testClaim is a claim as the API server has it before a node is chosen.
func testClaim(version string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "space", Name: "claim", ResourceVersion: version},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("class")},
	}
}

func chosen(claim *corev1.PersistentVolumeClaim, node string) *corev1.PersistentVolumeClaim {
	claim = claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, storage.AnnSelectedNode, node)
	return claim
}

func boundTo(claim *corev1.PersistentVolumeClaim, volume string) *corev1.PersistentVolumeClaim {
	claim = claim.DeepCopy()
	claim.Spec.VolumeName = volume
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, storage.AnnBindCompleted, "yes")
	return claim
}

// testVolume is a volume of the claim that can be reached from zone.
func testVolume(zone string) *corev1.PersistentVolume {
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}},
	}}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume"},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "space", Name: "claim"},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}},
			},
		},
	}
}

func provisions(claims ...*corev1.PersistentVolumeClaim) *upstream.PodVolumes {
	volumes := &upstream.PodVolumes{StaticBindings: []*upstream.BindingInfo{}}
	for _, claim := range claims {
		volumes.DynamicProvisions = append(volumes.DynamicProvisions, &upstream.DynamicProvision{PVC: claim})
	}
	return volumes
}

// binding is a running BindPodVolumes of testPod and one claim, with its own fake API server.
type binding struct {
	client *fake.Clientset
	binder *binder
	inner  *upstream.FakeVolumeBinder
	result chan error
}

// bind starts a binding and returns when it has written the claim.
func bind(t *testing.T, ctx context.Context, timeout time.Duration) *binding {
	t.Helper()
	before := testClaim("1")
	b := &binding{
		client: fake.NewClientset(testPod(), testNode(), testClass("example.com/disks"), before),
		inner:  upstream.NewFakeVolumeBinder(&upstream.FakeVolumeBinderConfig{}),
		result: make(chan error, 1),
	}
	factory := informers.NewSharedInformerFactory(b.client, 0)
	var err error
	b.binder, err = newBinder(b.inner, b.client, factory, timeout)
	require.NoError(t, err)
	factory.StartWithContext(t.Context())
	synced := factory.WaitForCacheSyncWithContext(t.Context())
	t.Cleanup(factory.Shutdown)
	// The fake API server's watches do not have what was deleted between an informer's list and its watch.
	require.Eventually(t, func() bool { return watches(b.client) == len(synced.Synced) }, waitTimeout, time.Millisecond, "not all informers watch")

	assumed := chosen(before, "node")
	assumed.ResourceVersion = "2" // the fake API server does not set it
	go func() { b.result <- b.binder.BindPodVolumes(ctx, testPod(), provisions(assumed)) }()
	require.Eventually(t, func() bool {
		claim, err := b.client.CoreV1().PersistentVolumeClaims("space").Get(t.Context(), "claim", metav1.GetOptions{})
		return err == nil && claim.Annotations[storage.AnnSelectedNode] == "node"
	}, waitTimeout, time.Millisecond, "the chosen node was not written")
	return b
}

// watches counts the watches that were begun.
func watches(client *fake.Clientset) int {
	begun := 0
	for _, action := range client.Actions() {
		if action.GetVerb() == "watch" {
			begun++
		}
	}
	return begun
}

func (b *binding) write(t *testing.T, claim *corev1.PersistentVolumeClaim) {
	t.Helper()
	_, err := b.client.CoreV1().PersistentVolumeClaims("space").Update(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func (b *binding) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-b.result:
		assert.Empty(t, b.binder.waiters.byTopic, "a wait was not released")
		assert.False(t, b.inner.BindCalled, "upstream's wait was used")
		return err
	case <-time.After(waitTimeout):
		t.Fatal("the wait did not end")
		return nil
	}
}

func TestTheEventOfTheBoundClaimEndsTheWait(t *testing.T) {
	b := bind(t, t.Context(), time.Hour)
	_, err := b.client.CoreV1().PersistentVolumes().Create(t.Context(), testVolume("here"), metav1.CreateOptions{})
	require.NoError(t, err)
	b.write(t, boundTo(chosen(testClaim("3"), "node"), "volume"))
	require.NoError(t, b.end(t))
}

func TestTheEventOfTheVolumeEndsTheWaitToo(t *testing.T) {
	b := bind(t, t.Context(), time.Hour)
	b.write(t, boundTo(chosen(testClaim("3"), "node"), "volume"))
	_, err := b.client.CoreV1().PersistentVolumes().Create(t.Context(), testVolume("here"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, b.end(t))
}

func TestErrorsThatReturnThePodToTheQueue(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(t *testing.T, b *binding)
		want    string
	}{
		"the provisioner removes the node": {func(t *testing.T, b *binding) {
			b.write(t, testClaim("3"))
		}, `its provisioner removed the selected node`},
		"another node is chosen": {func(t *testing.T, b *binding) {
			b.write(t, chosen(testClaim("3"), "other"))
		}, `was not provisioned on node "node"`},
		"the claim is deleted": {func(t *testing.T, b *binding) {
			require.NoError(t, b.client.CoreV1().PersistentVolumeClaims("space").Delete(t.Context(), "claim", metav1.DeleteOptions{}))
		}, "get claim space/claim"},
		"the Pod is deleted": {func(t *testing.T, b *binding) {
			require.NoError(t, b.client.CoreV1().Pods("space").Delete(t.Context(), "pod", metav1.DeleteOptions{}))
		}, "pod space/pod is gone"},
		"the node is deleted": {func(t *testing.T, b *binding) {
			require.NoError(t, b.client.CoreV1().Nodes().Delete(t.Context(), "node", metav1.DeleteOptions{}))
		}, `get node "node"`},
		"the volume is out of reach": {func(t *testing.T, b *binding) {
			_, err := b.client.CoreV1().PersistentVolumes().Create(t.Context(), testVolume("there"), metav1.CreateOptions{})
			require.NoError(t, err)
			b.write(t, boundTo(chosen(testClaim("3"), "node"), "volume"))
		}, `volume "volume" is not accessible from node "node"`},
		"the node moves away from the volume": {func(t *testing.T, b *binding) {
			claim := chosen(testClaim("3"), "node")
			claim.Spec.VolumeName = "volume" // not yet fully bound
			_, err := b.client.CoreV1().PersistentVolumes().Create(t.Context(), testVolume("here"), metav1.CreateOptions{})
			require.NoError(t, err)
			b.write(t, claim)
			node := testNode()
			node.Labels["zone"] = "there"
			_, err = b.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
			require.NoError(t, err)
		}, `volume "volume" is not accessible from node "node"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := bind(t, t.Context(), time.Hour)
			c.happens(t, b)
			err := b.end(t)
			require.ErrorContains(t, err, "binding volumes: ")
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestTheWaitIsBounded(t *testing.T) {
	b := bind(t, t.Context(), 10*time.Millisecond)
	require.ErrorIs(t, b.end(t), context.DeadlineExceeded)
}

func TestTheFrameworkMayEndTheWait(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := bind(t, ctx, time.Hour)
	cancel()
	require.ErrorIs(t, b.end(t), context.Canceled)
}

func TestAFailedWriteIsReturned(t *testing.T) {
	client := fake.NewClientset(testClass("example.com/disks"))
	factory := informers.NewSharedInformerFactory(client, 0)
	b, err := newBinder(nil, client, factory, time.Hour)
	require.NoError(t, err)
	fill(t, factory.Storage().V1().StorageClasses().Informer(), testClass("example.com/disks"))
	err = b.BindPodVolumes(t.Context(), testPod(), provisions(chosen(testClaim("1"), "node")))
	require.ErrorContains(t, err, "select a node for claim space/claim")
	require.Empty(t, b.waiters.byTopic)
}

// TestOldClaimIsIgnored: the informer may be behind our own write, and what it has
// then is not the decision of the provisioner.
func TestOldClaimIsIgnored(t *testing.T) {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	b, err := newBinder(nil, client, factory, time.Hour)
	require.NoError(t, err)
	claims := factory.Core().V1().PersistentVolumeClaims().Informer()

	fill(t, claims, testClaim("7"))
	bound, err := b.bound(chosen(testClaim("8"), "node"), testNode())
	require.NoError(t, err)
	require.False(t, bound)

	fill(t, claims, testClaim("9"))
	_, err = b.bound(chosen(testClaim("8"), "node"), testNode())
	require.ErrorContains(t, err, "removed the selected node")
}

func TestOtherVolumesAreLeftToUpstream(t *testing.T) {
	claim := chosen(testClaim("1"), "node")
	mixed := provisions(claim)
	mixed.StaticBindings = []*upstream.BindingInfo{{}}
	for name, c := range map[string]struct {
		provisioner string
		volumes     *upstream.PodVolumes
	}{
		"a volume that exists":      {"example.com/disks", &upstream.PodVolumes{StaticBindings: mixed.StaticBindings}},
		"one of each":               {"example.com/disks", mixed},
		"nothing to be provisioned": {"example.com/disks", provisions()},
		"an in-tree plugin":         {"kubernetes.io/gce-pd", provisions(claim)},
		"a class that is gone":      {"", provisions(claim)},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			factory := informers.NewSharedInformerFactory(client, 0)
			inner := upstream.NewFakeVolumeBinder(&upstream.FakeVolumeBinderConfig{})
			b, err := newBinder(inner, client, factory, time.Hour)
			require.NoError(t, err)
			if c.provisioner != "" {
				fill(t, factory.Storage().V1().StorageClasses().Informer(), testClass(c.provisioner))
			}
			require.NoError(t, b.BindPodVolumes(t.Context(), testPod(), c.volumes))
			require.True(t, inner.BindCalled)
			require.Empty(t, client.Actions())
		})
	}
}

func fill(t *testing.T, informer cache.SharedIndexInformer, object any) {
	t.Helper()
	require.NoError(t, informer.GetIndexer().Add(object))
}
