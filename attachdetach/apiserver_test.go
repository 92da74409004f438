//go:build integration

package attachdetach_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/attachdetach"
	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/attachdetach/csi"
	"github.com/berth-dev/berth/internal/freeport"
	"github.com/berth-dev/berth/internal/testproc"
)

const liveTimeout = 3 * time.Minute

// controlPlane runs a real API server, and the controllers that are not ours, until the test ends.
func controlPlane(t *testing.T) (dataDir string) {
	binary, err := filepath.Abs("../bin/berth-controlplane")
	require.NoError(t, err)
	_, err = os.Stat(binary)
	require.NoError(t, err, "run make build first")
	number, err := freeport.Loopback()
	require.NoError(t, err)
	runDir, err := os.MkdirTemp("/tmp", "ad")
	require.NoError(t, err)
	dataDir = t.TempDir()
	testproc.CleanupOnCrash(t, testproc.Resources{Dirs: []string{runDir, dataDir}})
	var out bytes.Buffer
	cmd := exec.Command(binary, "--data-dir", dataDir, "--run-dir", runDir,
		"--api-port", strconv.Itoa(number), "--unsafe-no-fsync")
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = os.RemoveAll(runDir)
		if t.Failed() {
			t.Log(out.String())
		}
	})
	return dataDir
}

func clientOf(path string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 500, 1000
	return kubernetes.NewForConfig(config)
}

// TestAgainstTheRealAPIServer runs the controller with the identity and the rights that a cluster gives it: a disk
// is attached, moves with its Pod, and survives a restart of the controller. The driver is one in memory, behind the
// attacher that berth has for drivers, with its own identity; it judges that the disk is never on two nodes, and that
// the attacher may read the disk's Secret.
func TestAgainstTheRealAPIServer(t *testing.T) {
	dataDir := controlPlane(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*liveTimeout)
	defer cancel()
	var admin kubernetes.Interface
	eventually := func(f func() bool, what string) {
		t.Helper()
		require.Eventually(t, f, liveTimeout, 20*time.Millisecond, what)
	}
	eventually(func() bool {
		var err error
		if admin, err = clientOf(filepath.Join(dataDir, "admin.kubeconfig")); err != nil {
			return false
		}
		_, err = admin.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	}, "the control plane must come up")
	client, err := clientOf(filepath.Join(dataDir, "kubeconfigs", "attachdetach.kubeconfig"))
	require.NoError(t, err)
	start := func() (stop func()) {
		c, err := attachdetach.New(attachdetach.Deps{Client: client}, attachdetach.Config{})
		require.NoError(t, err)
		running, stopRunning := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- c.Start(running) }()
		eventually(func() bool { return c.Ready() == nil }, "the controller must become ready")
		return func() { stopRunning(); require.NoError(t, <-done) }
	}
	for _, name := range []string{"a", "b"} {
		_, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{managed: "true"},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		csiNode.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver, NodeID: "id-of-" + name}}
		_, err = admin.StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	judge := &liveDriver{on: make(map[string]bool)}
	attacherClient, err := clientOf(filepath.Join(dataDir, "kubeconfigs", "attacher.kubeconfig"))
	require.NoError(t, err)
	answering, err := attacher.New(attacher.Deps{Client: attacherClient, Driver: judge}, attacher.Config{DriverName: driver})
	require.NoError(t, err)
	attaching, stopAttaching := context.WithCancel(ctx)
	answered := make(chan error, 1)
	go func() { answered <- answering.Start(attaching) }()
	defer func() { stopAttaching(); require.NoError(t, <-answered) }()
	liveDisk(ctx, t, admin)
	stop := start()
	livePod(ctx, t, admin, "one", "a")
	attached := func(node string) func() bool {
		return func() bool {
			n, err := admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
			return err == nil && len(n.Status.VolumesAttached) == 1 && n.Status.VolumesAttached[0].Name == unique("d")
		}
	}
	eventually(attached("a"), "the disk must be attached and listed")
	eventually(func() bool {
		events, err := admin.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, e := range events.Items {
			if e.Reason == "SuccessfulAttachVolume" && e.Source.Component == attachdetach.Name {
				return true
			}
		}
		return false
	}, "the event must be written")
	stop()

	zero := int64(0)
	require.NoError(t, admin.CoreV1().Pods("default").Delete(ctx, "one", metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	livePod(ctx, t, admin, "two", "b")
	stop = start()
	defer stop()
	began := time.Now()
	eventually(attached("b"), "after a restart the disk must move to where its pod is")
	t.Logf("moved %v after the start of the controller", time.Since(began).Round(time.Millisecond))
	require.False(t, attached("a")())
	list, err := admin.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	require.Equal(t, csi.AttachmentName(driver, "d", "b"), list.Items[0].Name)
	judge.mu.Lock()
	defer judge.mu.Unlock()
	require.Equal(t, map[string]bool{"id-of-b": true}, judge.on)
	require.False(t, judge.twice, "the disk must never be on two nodes")
	require.False(t, judge.locked, "the driver needs the disk's Secret for each call")
}

// liveDriver is a driver with one disk.
type liveDriver struct {
	mu    sync.Mutex
	on    map[string]bool // by node
	twice bool            // it was on two nodes
	// locked says that a call came without the disk's Secret.
	locked bool
}

func (d *liveDriver) ControllerGetCapabilities(
	context.Context, *csispec.ControllerGetCapabilitiesRequest, ...grpc.CallOption,
) (*csispec.ControllerGetCapabilitiesResponse, error) {
	return &csispec.ControllerGetCapabilitiesResponse{Capabilities: []*csispec.ControllerServiceCapability{{
		Type: &csispec.ControllerServiceCapability_Rpc{Rpc: &csispec.ControllerServiceCapability_RPC{
			Type: csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		}},
	}}}, nil
}

func (d *liveDriver) ControllerPublishVolume(
	_ context.Context, r *csispec.ControllerPublishVolumeRequest, _ ...grpc.CallOption,
) (*csispec.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.on[r.NodeId] = true
	d.locked = d.locked || r.Secrets["token"] != "open sesame"
	d.twice = d.twice || len(d.on) > 1
	return &csispec.ControllerPublishVolumeResponse{}, nil
}

func (d *liveDriver) ControllerUnpublishVolume(
	_ context.Context, r *csispec.ControllerUnpublishVolumeRequest, _ ...grpc.CallOption,
) (*csispec.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.on, r.NodeId)
	d.locked = d.locked || r.Secrets["token"] != "open sesame"
	return &csispec.ControllerUnpublishVolumeResponse{}, nil
}

// liveDisk makes a claim and its volume, and waits until they are bound.
func liveDisk(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	none := ""
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-d"}}
	pv.Spec = corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "d"},
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"token": "open sesame"}}
	_, err := admin.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{})
	require.NoError(t, err)
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "d",
		ControllerPublishSecretRef: &corev1.SecretReference{Namespace: "default", Name: "key"}}
	_, err = admin.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	require.NoError(t, err)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
	claim.Spec = corev1.PersistentVolumeClaimSpec{
		VolumeName: "pv-d", AccessModes: modes, StorageClassName: &none,
		Resources: corev1.VolumeResourceRequirements{Requests: size},
	}
	_, err = admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{})
	require.NoError(t, err)
}

func livePod(ctx context.Context, t *testing.T, admin kubernetes.Interface, name, node string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pod.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "d"},
	}}}
	_, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	require.NoError(t, err, fmt.Sprintf("pod %s on node %s", name, node))
}
