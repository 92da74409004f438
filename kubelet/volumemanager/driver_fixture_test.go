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
	mu      sync.Mutex
	inUse   []corev1.UniqueVolumeName
	blocked chan struct{} // if not nil, writes wait until it is closed
	check   func([]corev1.UniqueVolumeName)
}

var _ volumemanager.NodeStatus = (*nodeStatus)(nil)

func (s *nodeStatus) SetVolumesInUse(ctx context.Context, volumes []corev1.UniqueVolumeName) error {
	s.mu.Lock()
	hold := s.blocked
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

func (s *nodeStatus) blockWrites() (release func()) {
	hold := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = hold
	return func() {
		s.mu.Lock()
		s.blocked = nil
		s.mu.Unlock()
		close(hold)
	}
}

// newDriverFixture returns a fixture with a CSI driver. The driver keeps running when the volume manager restarts.
func newDriverFixture(t *testing.T, change ...func(*csifake.Config)) *fixture {
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
	f := newFixtureAt(t, filepath.Join(base, "kubelet"))
	f.driver = driver
	f.register()
	return f
}

func (f *fixture) register() {
	f.t.Helper()
	driver, err := csi.Dial(context.WithoutCancel(f.t.Context()), f.driver.Config.Name, f.driver.Endpoint())
	require.NoError(f.t, err)
	f.drivers.Add(driver)
}

func uniqueName(handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + driverName + "^" + handle)
}

// createDriverClaim creates a claim of this name, bound to a volume of the driver with a handle of the same name.
func (f *fixture) createDriverClaim(name string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	f.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim, pv, _ := f.newLocalClaim(name)
	pv.Spec.NodeAffinity = nil
	pv.Spec.Capacity, claim.Status.Capacity = size, size
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name},
	}
	for _, f := range change {
		f(pv)
	}
	f.create(claim, pv)
	return pv
}

// attach does what the attach/detach controller does.
func (f *fixture) attach(handles ...string) {
	f.t.Helper()
	node := newNode()
	for _, handle := range handles {
		sum := sha256.Sum256([]byte(handle + driverName + "here"))
		_ = f.client.Tracker().Add(&storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sum)},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "here"},
			Status:     storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"lun": handle}},
		})
		node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: uniqueName(handle)})
	}
	f.NodeChanged(node)
}

// createUnattachedDriver creates the CSIDriver object of a driver whose volumes need no attachment.
func (f *fixture) createUnattachedDriver(change ...func(*storagev1.CSIDriver)) {
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}
	for _, f := range change {
		f(object)
	}
	f.create(object)
	f.restart() // so that the object is listed
}

func (f *fixture) requireUnstaged() {
	f.t.Helper()
	f.eventually("everything is unstaged", func() bool { return f.driver.Staged() == 0 && len(f.status.list()) == 0 })
	require.Zero(f.t, f.driver.Published())
	f.eventually("no directory is left", func() bool {
		entries, _ := os.ReadDir(filepath.Join(f.root, "plugins/kubernetes.io/csi", driverName))
		return len(entries) == 0
	})
	left, err := mounts.ListBelow(filepath.Join(f.root, "plugins"))
	require.NoError(f.t, err)
	require.Empty(f.t, left)
}
