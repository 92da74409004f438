package claims_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/internal/statefile/corrupt"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/kubelet/resources/claims"
)

const (
	driverName  = "dra.example.com"
	testTimeout = time.Minute
	tick        = 10 * time.Millisecond
)

func one() resource.Quantity { return resource.MustParse("1") }

// driver is a DRA driver of the test's own process, with a real server on a real socket.
type driver struct {
	draapi.UnsafeDRAPluginServer
	healthapi.UnsafeDRAResourceHealthServer
	fail error
	// reports are those of the health of its devices.
	reports chan []*healthapi.DeviceHealth

	mu    sync.Mutex // guards calls
	calls []string
}

func (d *driver) note(call string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call)
}

func (d *driver) NodePrepareResources(_ context.Context, request *draapi.NodePrepareResourcesRequest) (*draapi.NodePrepareResourcesResponse, error) {
	out := &draapi.NodePrepareResourcesResponse{Claims: map[string]*draapi.NodePrepareResourceResponse{}}
	for _, c := range request.Claims {
		d.note("prepare " + c.Name)
		result := &draapi.NodePrepareResourceResponse{Devices: []*draapi.Device{
			{RequestNames: []string{"gpu"}, PoolName: "pool", DeviceName: "gpu-0", CdiDeviceIds: []string{"example.com/gpu=0"}, ShareId: ptr.To("half")},
			{RequestNames: []string{"nic/fast"}, PoolName: "pool", DeviceName: "nic-0", CdiDeviceIds: []string{"example.com/nic=0"}},
		}}
		if d.fail != nil {
			result = &draapi.NodePrepareResourceResponse{Error: d.fail.Error()}
		}
		out.Claims[c.Uid] = result
	}
	return out, nil
}

func (d *driver) NodeUnprepareResources(_ context.Context, request *draapi.NodeUnprepareResourcesRequest) (*draapi.NodeUnprepareResourcesResponse, error) {
	out := &draapi.NodeUnprepareResourcesResponse{Claims: map[string]*draapi.NodeUnprepareResourceResponse{}}
	for _, c := range request.Claims {
		d.note("unprepare " + c.Name)
		out.Claims[c.Uid] = &draapi.NodeUnprepareResourceResponse{}
	}
	return out, nil
}

type fixture struct {
	*claims.Manager
	t      *testing.T
	root   string
	client *fake.Clientset
	driver *driver
	// stopDriver ends the driver's server. It may be called again.
	stopDriver func()
	clock      clock.Clock
	// noAPIServer is the manager's configuration after the next restart.
	noAPIServer bool
	// changed are the Pods of whose devices the health has changed.
	changed chan types.UID
}

func (f *fixture) healthChanged(uid types.UID) { f.changed <- uid }

func newFixture(t *testing.T) *fixture {
	root, err := os.MkdirTemp("", "claims") // t.TempDir may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	f := &fixture{t: t, root: root, client: fake.NewClientset(), driver: &driver{reports: make(chan []*healthapi.DeviceHealth)}, changed: make(chan types.UID, 100)}
	f.serveDriver()
	t.Cleanup(func() { f.stopDriver() })
	f.restart()
	return f
}

// serveDriver serves the driver's socket until stopDriver is called.
func (f *fixture) serveDriver() {
	f.t.Helper()
	listener, err := net.Listen("unix", filepath.Join(f.root, "dra.sock"))
	require.NoError(f.t, err)
	server := grpc.NewServer()
	draapi.RegisterDRAPluginServer(server, f.driver)
	healthapi.RegisterDRAResourceHealthServer(server, f.driver)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	f.stopDriver = func() { server.Stop(); <-done }
}

func (f *fixture) restart() {
	f.t.Helper()
	var err error
	f.Manager, err = claims.New(claims.Deps{Client: f.client, OnHealthChanged: f.healthChanged, Clock: f.clock},
		claims.Config{Root: f.root, NodeName: "node", NoAPIServer: f.noAPIServer})
	require.NoError(f.t, err)
	require.NoError(f.t, f.Open())
}

func (f *fixture) plugin() pluginmanager.Plugin {
	return pluginmanager.Plugin{Name: driverName, Endpoint: filepath.Join(f.root, "dra.sock"), Versions: []string{draapi.DRAPluginService}}
}

// claim creates a claim that is allocated for the Pods.
func (f *fixture) claim(name string, pods ...string) {
	f.claimWithUID(name, types.UID("uid-of-"+name), pods...)
}

func (f *fixture) claimWithUID(name string, uid types.UID, pods ...string) {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: uid},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driverName, Request: "gpu", Pool: "pool", Device: "gpu-0"}},
		}}},
	}
	for _, uid := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: uid, UID: types.UID(uid)})
	}
	_, err := f.client.ResourceV1().ResourceClaims("ns").Create(f.t.Context(), c, metav1.CreateOptions{})
	require.NoError(f.t, err)
}

func podOf(uid, claim string, requests ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Namespace: "ns"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "mine", ResourceClaimName: ptr.To(claim)}}
	c := corev1.Container{Name: "c"}
	for _, request := range requests {
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: "mine", Request: request})
	}
	pod.Spec.Containers = []corev1.Container{c}
	return pod
}

func (f *fixture) cdi(pod *corev1.Pod) []string {
	f.t.Helper()
	list, err := f.CDIDevices(pod, &pod.Spec.Containers[0])
	require.NoError(f.t, err)
	var names []string
	for _, d := range list {
		names = append(names, d.Name)
	}
	return names
}

func TestClaimsArePreparedAndUnprepared(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	f.claim("shared", "a", "b")
	a, b := podOf("a", "shared", ""), podOf("b", "shared", "nic")
	require.ErrorContains(t, f.Prepare(ctx, a), "DRA driver dra.example.com is not registered")
	require.NoError(t, f.Register(ctx, f.plugin()))
	require.NoError(t, f.Prepare(ctx, a))
	require.NoError(t, f.Prepare(ctx, a))
	require.NoError(t, f.Prepare(ctx, b))
	require.Equal(t, []string{"prepare shared"}, f.driver.calls, "once for all Pods")
	require.Equal(t, []string{"example.com/gpu=0", "example.com/nic=0"}, f.cdi(a))
	require.Equal(t, ptr.To(types.UID("half")), f.Of(a, &a.Spec.Containers[0])[0].ShareID)
	require.Equal(t, []string{"example.com/nic=0"}, f.cdi(b), "an alternative of the request")
	require.NoError(t, f.Unprepare(ctx, "a"))
	require.Len(t, f.driver.calls, 1, "the other Pod still uses it")
	require.NoError(t, f.Unprepare(ctx, "b"))
	require.NoError(t, f.Unprepare(ctx, "b"))
	require.Equal(t, []string{"prepare shared", "unprepare shared"}, f.driver.calls)
	_, err := f.CDIDevices(a, &a.Spec.Containers[0])
	require.ErrorContains(t, err, "ResourceClaim ns/shared is not prepared")
}

// TestAPodEndsWithoutADriverThatItNeverHad: two drivers have allocated devices for its claims, and one is not installed on the node.
func TestAPodEndsWithoutADriverThatItNeverHad(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	require.NoError(t, f.Register(ctx, f.plugin()))
	f.claim("here", "a")
	f.claim("missing", "a")
	object, err := f.client.ResourceV1().ResourceClaims("ns").Get(ctx, "missing", metav1.GetOptions{})
	require.NoError(t, err)
	object.Status.Allocation.Devices.Results[0].Driver = "other.example.com"
	_, err = f.client.ResourceV1().ResourceClaims("ns").UpdateStatus(ctx, object, metav1.UpdateOptions{})
	require.NoError(t, err)
	pod := podOf("a", "here")
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "second", ResourceClaimName: ptr.To("missing")})
	require.ErrorContains(t, f.Prepare(ctx, pod), "DRA driver other.example.com is not registered")
	require.Empty(t, f.driver.calls, "no driver is asked while one is missing")
	require.NoError(t, f.Unprepare(ctx, "a"))
	f.restart()
	require.NoError(t, f.Unprepare(ctx, "a"), "nothing is recorded")
}

func TestClaimsOutliveTheProcess(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	f.claim("one", "a")
	pod := podOf("a", "one", "gpu")
	require.NoError(t, f.Register(ctx, f.plugin()))
	require.NoError(t, f.Prepare(ctx, pod))
	f.restart()
	require.Equal(t, []string{"example.com/gpu=0"}, f.cdi(pod))
	require.ErrorContains(t, f.Unprepare(ctx, "a"), "is not registered")

	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f.Start(running) }()
	f.Retain(func(types.UID) bool { return false })
	require.NoError(t, f.Register(ctx, f.plugin()))
	require.Eventually(t, func() bool {
		_, err := f.CDIDevices(pod, &pod.Spec.Containers[0])
		return err != nil
	}, testTimeout, tick, "the Pod is gone, and so is its claim")
	cancel()
	require.NoError(t, <-done)
	f.restart()
	require.NoError(t, f.Unprepare(ctx, "a"), "nothing is left")
}

// TestClaimsAreRecordedAlsoAfterFailures: what a driver has prepared must be known to the next process, which has it unprepared.
func TestClaimsAreRecordedAlsoAfterFailures(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	f.claim("first", "other")
	f.claim("one", "a")
	pod := podOf("a", "one", "gpu")
	require.NoError(t, f.Register(ctx, f.plugin()))
	require.NoError(t, f.Prepare(ctx, podOf("other", "first")), "the driver is connected")
	away := f.root + ".away"
	require.NoError(t, os.Rename(f.root, away))
	for range 3 {
		require.ErrorContains(t, f.Prepare(ctx, pod), "write the state of ResourceClaims")
	}
	require.Equal(t, []string{"prepare first"}, f.driver.calls, "no driver is asked for what is not recorded")
	require.NoError(t, os.Rename(away, f.root))
	require.NoError(t, f.Prepare(ctx, pod))
	f.restart()
	require.Equal(t, []string{"example.com/gpu=0"}, f.cdi(pod))
}

func TestClaimsThatAPodMayNotUse(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	require.NoError(t, f.Register(ctx, f.plugin()))
	f.claim("others", "b")
	require.ErrorContains(t, f.Prepare(ctx, podOf("a", "others")), "pod a (a) is not allowed to use ResourceClaim others")
	require.ErrorContains(t, f.Prepare(ctx, podOf("a", "missing")), "fetch ResourceClaim missing")
	f.driver.fail = errors.New("on fire")
	require.ErrorContains(t, f.Prepare(ctx, podOf("b", "others")), "NodePrepareResources failed for ResourceClaim others: on fire")
	f.driver.fail = nil
	require.NoError(t, f.Prepare(ctx, podOf("b", "others")), "another attempt")
}

// TestAClaimThatReplacesAnotherWaits: a Pod and its claim may be deleted by force and created anew before the kubelet has ended the old ones.
func TestAClaimThatReplacesAnotherWaits(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	require.NoError(t, f.Register(ctx, f.plugin()))
	f.claim("one", "old")
	require.NoError(t, f.Prepare(ctx, podOf("old", "one")))
	require.NoError(t, f.client.ResourceV1().ResourceClaims("ns").Delete(ctx, "one", metav1.DeleteOptions{}))
	f.claimWithUID("one", "another", "new")
	require.ErrorContains(t, f.Prepare(ctx, podOf("new", "one")), "old ResourceClaim with same name one and different UID uid-of-one still exists")
	require.NoError(t, f.Unprepare(ctx, "old"))
	require.NoError(t, f.Prepare(ctx, podOf("new", "one")))
	require.Equal(t, []string{"prepare one", "unprepare one", "prepare one"}, f.driver.calls)
}

func TestExtendedResourcesOfClaims(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	require.NoError(t, f.Register(ctx, f.plugin()))
	f.claim("made", "a")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a", Name: "a", Namespace: "ns"}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"example.com/gpu": one()},
	}}}
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "made",
		RequestMappings:   []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "gpu"}},
	}
	require.True(t, podutil.HasClaims(pod))
	require.NoError(t, f.Prepare(ctx, pod))
	require.Equal(t, []string{"example.com/gpu=0"}, f.cdi(pod))
}

func TestDamagedStateIsSetAside(t *testing.T) {
	f := newFixture(t)
	corrupt.Each(t, func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), claims.StateFile)
		require.NoError(t, os.WriteFile(path, []byte(`{"Data":"{}","Checksum":2745614147}`), 0o600))
		return path
	}, func(t *testing.T, way, path string) {
		m, err := claims.New(claims.Deps{Client: f.client, OnHealthChanged: f.healthChanged}, claims.Config{Root: filepath.Dir(path), NodeName: "node"})
		require.NoError(t, err)
		require.NoError(t, m.Open())
		aside, err := statefile.Asides(path)
		require.NoError(t, err)
		require.Equal(t, way != "missing" && way != "no permission", len(aside) == 1, "%v", aside)
	})
}

// TestClaimsOfADamagedStateAreRecovered has two Pods that have run since before the kubelet that finds its state damaged: the claims of one
// are prepared again by themselves, those of the one that ends before its driver registers are unprepared.
func TestClaimsOfADamagedStateAreRecovered(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	f.claim("kept", "a")
	f.claim("ended", "b")
	f.claim("gone", "c")
	a, b, c := podOf("a", "kept", "gpu"), podOf("b", "ended", "gpu"), podOf("c", "gone", "gpu")
	require.NoError(t, f.Register(ctx, f.plugin()))
	for _, pod := range []*corev1.Pod{a, b, c} {
		require.NoError(t, f.Prepare(ctx, pod))
	}
	require.NoError(t, os.WriteFile(filepath.Join(f.root, claims.StateFile), []byte("{"), 0o600))
	f.restart()
	for _, pod := range []*corev1.Pod{a, b, c} {
		f.Readmit(pod)
	}
	require.NoError(t, f.client.ResourceV1().ResourceClaims("ns").Delete(ctx, "gone", metav1.DeleteOptions{}))
	require.NoError(t, f.Unprepare(ctx, "c"), "its claim is not its own any more")
	require.ErrorContains(t, f.Unprepare(ctx, "b"), "is not registered")
	require.ErrorContains(t, f.Recover(ctx, "a"), "is not registered")
	require.NoError(t, f.Recover(ctx, "unknown"))

	f.start()
	require.NoError(t, f.Register(ctx, f.plugin()))
	require.Eventually(t, func() bool { return len(f.Of(a, &a.Spec.Containers[0])) == 1 }, testTimeout, tick)
	require.NoError(t, f.Recover(ctx, "a"))
	require.Equal(t, []string{"example.com/gpu=0"}, f.cdi(a))
	require.NoError(t, f.Unprepare(ctx, "b"))
	require.NoError(t, f.Unprepare(ctx, "a"))
	require.Equal(t, []string{"prepare kept", "prepare ended", "prepare gone", "prepare kept", "unprepare ended", "unprepare kept"}, f.driver.calls)
}

// TestWhoMayUseClaimsOfTemplates: a claim that was created for a Pod may be shared by Pods that name it, and no other claim can stand in for it.
func TestWhoMayUseClaimsOfTemplates(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	require.NoError(t, f.Register(ctx, f.plugin()))
	f.claim("made", "owner", "other")
	object, err := f.client.ResourceV1().ResourceClaims("ns").Get(ctx, "made", metav1.GetOptions{})
	require.NoError(t, err)
	object.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "owner", UID: "owner", Controller: ptr.To(true)}}
	_, err = f.client.ResourceV1().ResourceClaims("ns").Update(ctx, object, metav1.UpdateOptions{})
	require.NoError(t, err)
	ofTemplate := func(uid, claim string) *corev1.Pod {
		pod := podOf(uid, claim)
		pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "mine", ResourceClaimTemplateName: ptr.To("template")}
		pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "mine", ResourceClaimName: ptr.To(claim)}}
		return pod
	}
	require.NoError(t, f.Prepare(ctx, ofTemplate("owner", "made")))
	require.NoError(t, f.Prepare(ctx, podOf("other", "made")), "it is reserved for the Pod, which names it")
	require.ErrorContains(t, f.Prepare(ctx, ofTemplate("other", "made")), "ResourceClaim ns/made was not created for pod ns/other")
	f.claim("plain", "owner")
	require.ErrorContains(t, f.Prepare(ctx, ofTemplate("owner", "plain")), "ResourceClaim ns/plain was not created for pod ns/owner")
}
