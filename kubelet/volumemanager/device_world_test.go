package volumemanager_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume/csi"
	csifake "github.com/berth-dev/berth/volume/csi/fake"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

const driverName = "fake.csi.test"

// nodeStatus is a Node's status that the test may keep from being written.
type nodeStatus struct {
	mu    sync.Mutex
	inUse []corev1.UniqueVolumeName
	hold  chan struct{} // if not nil, writes wait until it is closed
	check func([]corev1.UniqueVolumeName)
}

var _ volumemanager.NodeStatus = (*nodeStatus)(nil)

func (s *nodeStatus) SetVolumesInUse(ctx context.Context, volumes []corev1.UniqueVolumeName) error {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse = slices.Sorted(slices.Values(volumes))
	if s.check != nil {
		s.check(s.inUse)
	}
	return nil
}

func (s *nodeStatus) list() []corev1.UniqueVolumeName {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.inUse)
}

func (s *nodeStatus) checkWrites(check func([]corev1.UniqueVolumeName)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.check = check
}

func (s *nodeStatus) holdWrites() (release func()) {
	hold := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = hold
	return func() {
		s.mu.Lock()
		s.hold = nil
		s.mu.Unlock()
		close(hold)
	}
}

// deviceWorld is a world with a CSI driver. The driver lives on when the node agent restarts.
func deviceWorld(t *testing.T, change ...func(*csifake.Config)) *world {
	t.Helper()
	base := testsuite.Root(t)
	config := csifake.Config{
		Name: driverName, NodeID: "id", Dir: filepath.Join(base, "d"), Device: testsuite.BlockDevice(t),
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{
			csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME,
			csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		},
	}
	for _, f := range change {
		f(&config)
	}
	driver := csifake.New(config)
	require.NoError(t, driver.Serve(""))
	t.Cleanup(driver.Stop)
	w := newWorldAt(t, filepath.Join(base, "kubelet"))
	w.driver = driver
	w.register()
	return w
}

func (w *world) register() {
	w.t.Helper()
	driver, err := csi.Dial(context.WithoutCancel(w.t.Context()), w.driver.Config.Name, w.driver.Endpoint())
	require.NoError(w.t, err)
	w.drivers.Add(driver)
}

func unique(handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + driverName + "^" + handle)
}

// device makes a claim of this name bound to a volume of the driver with a handle of the same name.
func (w *world) device(name string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	w.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim, pv, _ := w.claim(name)
	pv.Spec.NodeAffinity = nil
	pv.Spec.Capacity, claim.Status.Capacity = size, size
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name},
	}
	for _, f := range change {
		f(pv)
	}
	w.create(claim, pv)
	return pv
}

// attach does what the attach/detach controller does.
func (w *world) attach(handles ...string) {
	w.t.Helper()
	node := hereNode()
	for _, handle := range handles {
		sum := sha256.Sum256([]byte(handle + driverName + "here"))
		_ = w.client.Tracker().Add(&storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sum)},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "here"},
			Status:     storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"lun": handle}},
		})
		node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: unique(handle)})
	}
	w.NodeChanged(node)
}

// noAttach says that volumes of the driver need no attachment.
func (w *world) noAttach(change ...func(*storagev1.CSIDriver)) {
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}
	for _, f := range change {
		f(object)
	}
	w.create(object)
	w.restart() // so that the object is surely known
}

func (w *world) allGone() {
	w.t.Helper()
	w.await("everything is unstaged", func() bool { return w.driver.Staged() == 0 && len(w.status.list()) == 0 })
	require.Zero(w.t, w.driver.Published())
	w.await("no directory is left", func() bool {
		entries, _ := os.ReadDir(filepath.Join(w.root, "plugins/kubernetes.io/csi", driverName))
		return len(entries) == 0
	})
	left, err := mounts.ListBelow(filepath.Join(w.root, "plugins"))
	require.NoError(w.t, err)
	require.Empty(w.t, left)
}
