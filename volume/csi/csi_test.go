package csi_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/faulttest"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/csi"
	"github.com/berth-dev/berth/volume/csi/fake"
	"github.com/berth-dev/berth/volume/testsuite"
)

func TestMain(m *testing.M) {
	faulttest.Main(csi.Faults()...)
	goleak.VerifyTestMain(m)
}

const driverName = "fake.csi.test"

// tokens returns tokens as the API server does.
type tokens struct{}

func (tokens) Token(_ context.Context, pod *corev1.Pod, want *corev1.ServiceAccountTokenProjection) (string, error) {
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1700000000,"aud":"` + want.Audience + `"}`))
	return "head." + claims + ".signature-" + string(pod.UID), nil
}

// fixture is a plugin with one driver.
type fixture struct {
	*csi.Plugin
	t      testing.TB
	root   string
	driver *fake.Driver
	object *storagev1.CSIDriver
	client *kubefake.Clientset
}

func newFixture(t testing.TB, capabilities ...csipb.NodeServiceCapability_RPC_Type) *fixture {
	t.Helper()
	base := testsuite.Root(t)
	f := &fixture{t: t, root: filepath.Join(base, "kubelet"), driver: fake.New(fake.Config{
		Name: driverName, NodeID: "id", Dir: filepath.Join(base, "d"), Capabilities: capabilities, Device: testsuite.BlockDevice(t),
	})}
	require.NoError(t, f.driver.Serve(""))
	t.Cleanup(f.driver.Stop)
	f.object = &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: ptr.To(false),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{
				storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
		},
	}
	return f
}

// start creates the plugin, after the test has prepared the objects.
func (f *fixture) start(objects ...runtime.Object) *csi.Plugin {
	f.t.Helper()
	drivers := csi.NewDrivers()
	driver, err := csi.Dial(f.t.Context(), driverName, "unix://"+f.driver.Endpoint())
	require.NoError(f.t, err)
	drivers.Add(driver)
	f.t.Cleanup(drivers.Close)
	return f.startWith(kubefake.NewClientset(append(objects, f.object)...), drivers)
}

// startWith creates the plugin with the drivers of the test.
func (f *fixture) startWith(client *kubefake.Clientset, drivers *csi.Drivers) *csi.Plugin {
	f.t.Helper()
	f.client = client
	var err error
	f.Plugin, err = csi.New(csi.Deps{Client: f.client, Drivers: drivers, Tokens: tokens{}},
		csi.Config{RootDir: f.root, NodeName: "here"})
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	plugin := f.Plugin
	go func() { done <- plugin.Start(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-done)
	})
	return plugin
}

func persistent(name string) volume.Spec {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle-" + name}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return volume.Spec{Name: "data", Volume: &corev1.Volume{Name: "data"}, PV: pv}
}

func inline(source *corev1.CSIVolumeSource) volume.Spec {
	return volume.Spec{Name: "data", Volume: &corev1.Volume{
		Name: "data", VolumeSource: corev1.VolumeSource{CSI: source}}}
}

func (f *fixture) request(uid types.UID, spec volume.Spec) volume.Request {
	pod := testsuite.Pod(uid, spec)
	pod.Spec.ServiceAccountName = "account"
	dir := volume.Dir(f.root, uid, csi.Name, spec.DirName())
	if spec.IsBlock() {
		dir = volume.DeviceDir(f.root, uid, csi.Name, spec.DirName())
	}
	return volume.Request{Pod: pod, Spec: spec, Dir: dir}
}

func TestSuite(t *testing.T) {
	for name, spec := range map[string]volume.Spec{
		"persistent": persistent("pv"), "inline": inline(&corev1.CSIVolumeSource{Driver: driverName}),
	} {
		t.Run(name, func(t *testing.T) {
			var f *fixture
			testsuite.Run(t, testsuite.Subject{
				New: func(t *testing.T) volume.Plugin { return f.start() },
				Spec: func(t *testing.T, scratch string) volume.Spec {
					f = newFixture(t)
					return spec
				},
				Writable: true, Persistent: true, // the fake keeps the data of inline volumes too
			})
		})
	}
}

func TestRequestsCarryWhatTheDriverNeeds(t *testing.T) {
	f := newFixture(t, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	f.object.Spec.PodInfoOnMount = ptr.To(true)
	f.object.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
	secret := func(namespace, name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Data: map[string][]byte{"for": []byte(name)}}
	}
	f.start(secret("x", "stage"), secret("x", "publish"), secret("default", "own"))
	spec := persistent("pv")
	spec.PV.Spec.MountOptions = []string{"noatime"}
	spec.PV.Spec.CSI.FSType = "xfs"
	spec.PV.Spec.CSI.VolumeAttributes = map[string]string{"a": "b"}
	spec.PV.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "x", Name: "stage"}
	spec.PV.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "x", Name: "publish"}
	device, err := f.Device(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, volume.Device{Name: "kubernetes.io/csi/fake.csi.test^handle-pv", Driver: "fake.csi.test"}, device)
	group := ptr.To(int64(77))
	require.NoError(t, f.Stage(t.Context(), volume.StageRequest{DeviceName: device.Name, Spec: spec, FSGroup: group}))
	stage := fake.Last[*csipb.NodeStageVolumeRequest](f.driver)
	require.Equal(t, map[string]string{"for": "stage"}, stage.Secrets)
	require.Equal(t, map[string]string{"a": "b"}, stage.VolumeContext)
	require.Regexp(t, f.root+`/plugins/kubernetes.io/csi/fake.csi.test/[0-9a-f]{64}/globalmount`, stage.StagingTargetPath)
	require.Equal(t, "77", stage.VolumeCapability.GetMount().VolumeMountGroup)

	request := f.request("uid", spec)
	request.FSGroup, request.ReadOnly = group, true
	mount, err := f.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.True(t, mount.ReadOnly)
	publish := fake.Last[*csipb.NodePublishVolumeRequest](f.driver)
	require.True(t, publish.Readonly)
	require.Equal(t, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, publish.VolumeCapability.AccessMode.Mode)
	require.Equal(t, "xfs", publish.VolumeCapability.GetMount().FsType)
	require.Equal(t, []string{"noatime"}, publish.VolumeCapability.GetMount().MountFlags)
	require.Equal(t, map[string]string{"for": "publish"}, publish.Secrets)
	tokensJSON := publish.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"]
	var statuses map[string]struct{ Token, ExpirationTimestamp string }
	require.NoError(t, json.Unmarshal([]byte(tokensJSON), &statuses))
	require.True(t, strings.HasSuffix(statuses["vault"].Token, "signature-uid"))
	require.Equal(t, "2023-11-14T22:13:20Z", statuses["vault"].ExpirationTimestamp)
	delete(publish.VolumeContext, "csi.storage.k8s.io/serviceAccount.tokens")
	require.Equal(t, map[string]string{
		"a": "b", "csi.storage.k8s.io/pod.name": "pod-uid", "csi.storage.k8s.io/pod.namespace": "default",
		"csi.storage.k8s.io/pod.uid": "uid", "csi.storage.k8s.io/serviceAccount.name": "account",
		"csi.storage.k8s.io/ephemeral": "false",
	}, publish.VolumeContext)
	raw, err := os.ReadFile(filepath.Join(request.Dir, "vol_data.json"))
	require.NoError(t, err)
	require.JSONEq(t, `{"specVolID":"pv","volumeHandle":"handle-pv","driverName":"fake.csi.test","nodeName":"here",
		"volumeLifecycleMode":"Persistent"}`, string(raw))
	name, err := f.DeviceOf(request.Dir)
	require.NoError(t, err)
	require.Equal(t, device.Name, name)
	require.NoError(t, f.TearDown(t.Context(), request.Dir))
	require.NoError(t, f.Unstage(t.Context(), device.Name))
	require.NoError(t, f.Unstage(t.Context(), device.Name), "twice is fine")

	own := inline(&corev1.CSIVolumeSource{Driver: driverName, NodePublishSecretRef: &corev1.LocalObjectReference{Name: "own"}})
	request = f.request("uid", own)
	_, err = f.SetUp(t.Context(), request)
	require.NoError(t, err)
	publish = fake.Last[*csipb.NodePublishVolumeRequest](f.driver)
	require.Equal(t, map[string]string{"for": "own"}, publish.Secrets)
	require.Regexp(t, `^csi-[0-9a-f]{64}$`, publish.VolumeId)
	require.Empty(t, publish.StagingTargetPath)
	require.Equal(t, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, publish.VolumeCapability.AccessMode.Mode)
	require.NoError(t, f.TearDown(t.Context(), request.Dir))
}

func TestAttachmentsAreChecked(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*storagev1.VolumeAttachment)
		err    string
	}{
		"attached": {func(*storagev1.VolumeAttachment) {}, ""},
		"not yet":  {func(a *storagev1.VolumeAttachment) { a.Status.Attached = false }, "it is not attached"},
		"going":    {func(a *storagev1.VolumeAttachment) { a.DeletionTimestamp = ptr.To(metav1.Now()) }, "it is being detached"},
		"strange":  {func(a *storagev1.VolumeAttachment) { a.Spec.NodeName = "there" }, `for driver "fake.csi.test" and node "there"`},
		"missing":  {func(a *storagev1.VolumeAttachment) { a.Name = "other" }, "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
			f.object.Spec.AttachRequired = nil
			attachment := &storagev1.VolumeAttachment{
				Spec:   storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "here"},
				Status: storagev1.VolumeAttachmentStatus{Attached: true},
			}
			attachment.Name = csi.AttachmentName("handle-pv", driverName, "here")
			test.change(attachment)
			f.start(attachment)
			spec := persistent("pv")
			device, err := f.Device(t.Context(), spec)
			require.NoError(t, err)
			require.True(t, device.Attach)
			err = f.Stage(t.Context(), volume.StageRequest{DeviceName: device.Name, Spec: spec})
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				require.Empty(t, f.driver.Calls())
				return
			}
			require.NoError(t, err)
			staged, err := f.Staged()
			require.NoError(t, err)
			require.Equal(t, []volume.Device{device}, staged)
			require.NoError(t, f.Unstage(t.Context(), device.Name))
		})
	}
}

func TestOutcomesOfFailures(t *testing.T) {
	for _, block := range []bool{false, true} {
		for code, uncertain := range map[codes.Code]bool{
			codes.Internal: false, codes.InvalidArgument: false, codes.FailedPrecondition: false,
			codes.Aborted: true, codes.Unavailable: true, codes.DeadlineExceeded: true, codes.ResourceExhausted: true,
		} {
			t.Run(fmt.Sprintf("%s, block %t", code, block), func(t *testing.T) {
				f := newFixture(t)
				f.start()
				spec := persistent("pv")
				setUp, tearDown := f.SetUp, f.TearDown
				if block {
					spec.PV.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
					setUp, tearDown = f.Map, f.Unmap
				}
				request := f.request("uid", spec)
				f.driver.FailNext("NodePublishVolume", fake.Fault{Code: code})
				_, err := setUp(t.Context(), request)
				require.ErrorContains(t, err, "code = "+code.String())
				require.Equal(t, uncertain, volume.IsUncertain(err))
				_, err = os.Lstat(request.Dir)
				require.Equal(t, uncertain, err == nil, "what may exist is found by its directory, and by nothing else")
				require.NoError(t, tearDown(t.Context(), request.Dir))

				_, err = setUp(t.Context(), request)
				require.NoError(t, err)
				f.driver.FailNext("NodePublishVolume", fake.Fault{Code: code})
				_, err = setUp(t.Context(), request)
				require.True(t, volume.IsUncertain(err), "what was set up once has to be torn down: %v", err)
				f.driver.FailNext("NodeUnpublishVolume", fake.Fault{Code: code}, fake.Fault{Code: code, TakesEffect: true})
				require.Error(t, tearDown(t.Context(), request.Dir))
				require.Error(t, tearDown(t.Context(), request.Dir))
				require.NoError(t, tearDown(t.Context(), request.Dir))
				require.NoFileExists(t, request.Dir)
				require.Zero(t, f.driver.Published())
			})
		}
	}
}

func TestDriverThatPublishesNoDevice(t *testing.T) {
	f := newFixture(t)
	f.start()
	spec := persistent("pv")
	spec.PV.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	f.driver.Config.Device = filepath.Join(f.driver.Config.Dir, "file")
	require.NoError(t, os.WriteFile(f.driver.Config.Device, nil, 0o600))
	request := f.request("uid", spec)
	_, err := f.Map(t.Context(), request)
	require.ErrorContains(t, err, "it succeeded but the target is not a block device")
	require.NoError(t, f.Unmap(t.Context(), request.Dir))
}

// TestDriverThatPublishesNoTarget must not make a Pod write what it wants to keep to the node's disk. An inline volume is an empty directory.
func TestDriverThatPublishesNoTarget(t *testing.T) {
	f := newFixture(t)
	f.driver.Config.PublishesNothing = true
	f.start()
	request := f.request("uid", persistent("pv"))
	_, err := f.SetUp(t.Context(), request)
	require.ErrorContains(t, err, "it succeeded but the target does not exist")
	require.NoError(t, f.TearDown(t.Context(), request.Dir))

	request = f.request("uid", inline(&corev1.CSIVolumeSource{Driver: driverName}))
	mount, err := f.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.DirExists(t, mount.Path)
	require.NoError(t, f.TearDown(t.Context(), request.Dir))
	require.NoDirExists(t, request.Dir)
}

func TestDataThatCannotBeRead(t *testing.T) {
	f := newFixture(t)
	f.start()
	request := f.request("uid", persistent("pv"))
	_, err := f.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(request.Dir, "vol_data.json"), []byte("{"), 0o600))
	data := filepath.Join(f.driver.Config.Dir, "data", "handle-pv", "f")
	require.NoError(t, os.WriteFile(data, nil, 0o600))
	require.NoError(t, f.TearDown(t.Context(), request.Dir))
	require.NoDirExists(t, request.Dir)
	require.FileExists(t, data, "nothing is removed through a mount")
}

func TestNamesOfDrivers(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "csi.example.com": true, "A-b.c9": true, "": false, "../x": false, "a/b": false, "a..b": false,
		".a": false, "a-": false, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, "a\x00": false,
	} {
		require.Equal(t, ok, csi.CheckDriverName(name) == nil, "%q", name)
	}
}
