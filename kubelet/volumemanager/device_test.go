package volumemanager_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume"
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
	left, err := mounts.Under(filepath.Join(w.root, "plugins"))
	require.NoError(w.t, err)
	require.Empty(w.t, left)
}

func TestDeviceIsUsedOnlyAfterTheHandshake(t *testing.T) {
	w := deviceWorld(t)
	w.device("v")
	release := w.status.holdWrites()
	p := pod("a", claimVolume("data", "v"))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{}
	w.attach("v") // attached from before, perhaps on its way out
	done := w.mounting(p)
	w.await("the Pod waits for the attachment", func() bool {
		record, _ := w.timeline.Record("a")
		for _, stage := range record.Stages {
			if stage.Name == "AttachVolume" {
				return true
			}
		}
		return false
	})
	require.Empty(t, w.driver.Calls(), "nothing may be done before the API server knows")
	w.NodeChanged(hereNode())
	release()
	w.await("in use", func() bool { return slices.Equal(w.status.list(), []corev1.UniqueVolumeName{unique("v")}) })
	require.Empty(t, w.driver.Calls(), "nothing may be done before the volume is attached")
	w.attach("v")
	require.NoError(t, w.result(done))
	require.Equal(t, []string{"NodeStageVolume v", "NodePublishVolume v"}, w.driver.Calls())
	stage, publish := csifake.Last[*csipb.NodeStageVolumeRequest](w.driver), csifake.Last[*csipb.NodePublishVolumeRequest](w.driver)
	require.Equal(t, map[string]string{"lun": "v"}, stage.PublishContext)
	require.Equal(t, map[string]string{"lun": "v"}, publish.PublishContext)
	require.Equal(t, stage.StagingTargetPath, publish.StagingTargetPath)
	require.Equal(t, filepath.Join(volume.Dir(w.root, "a", csi.Name, "pv-v"), "mount"), w.Volumes("a")["data"].Path)

	w.driver.FailNext("NodeUnstageVolume", csifake.Fault{Code: codes.Internal})
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.gone("a")
	w.await("the unstaging failed", func() bool { return slices.Contains(w.driver.Calls(), "NodeUnstageVolume v") })
	require.Len(t, w.status.list(), 1, "a volume is in use until it is unstaged")
	w.stepUntil(100*time.Millisecond, "unstaged", func() bool { return w.driver.Staged() == 0 })
	w.allGone()
}

func TestDeviceIsStagedOnceForAllItsPods(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v")
	var wg sync.WaitGroup
	for _, uid := range []types.UID{"a", "b", "c"} {
		wg.Go(func() {
			if err := w.Mount(t.Context(), pod(uid, claimVolume("data", "v"))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, os.WriteFile(filepath.Join(w.Volumes("a")["data"].Path, "f"), []byte("x"), 0o644))
	require.Equal(t, "x", w.read("b", "data", "f"))
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.NoError(t, w.Unmount(t.Context(), "b"))
	require.Equal(t, 1, w.driver.Staged())
	require.Empty(t, w.status.list(), "what needs no attachment is not in use")
	require.NoError(t, w.Unmount(t.Context(), "c"))
	w.allGone()
	count := map[string]int{}
	for _, call := range w.driver.Calls() {
		count[call]++
	}
	require.Equal(t, map[string]int{
		"NodeStageVolume v": 1, "NodePublishVolume v": 3, "NodeUnpublishVolume v": 3, "NodeUnstageVolume v": 1,
	}, count)
}

func TestNewProcessTakesDevicesOver(t *testing.T) {
	w := deviceWorld(t)
	for _, name := range []string{"keep", "drop"} {
		w.device(name)
	}
	w.attach("keep", "drop")
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "keep"))))
	require.NoError(t, w.Mount(t.Context(), pod("b", claimVolume("data", "drop"))))
	require.NoError(t, os.WriteFile(filepath.Join(w.Volumes("a")["data"].Path, "f"), []byte("x"), 0o644))
	before, err := mounts.Under(w.root)
	require.NoError(t, err)

	w.restart()
	w.await("what is on disk is in use", func() bool { return len(w.status.list()) == 2 })
	w.attach("keep", "drop")
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "keep"))))
	require.Equal(t, "x", w.read("a", "data", "f"))
	again, err := mounts.Under(w.root)
	require.NoError(t, err)
	require.Equal(t, before, again)
	require.Equal(t, 2, w.driver.Staged(), "nothing is undone before it is known who is wanted")
	require.NoError(t, w.CleanupOrphans(t.Context(), func(uid types.UID) bool { return uid == "a" }))
	w.await("the other is gone", func() bool { return w.driver.Staged() == 1 && len(w.status.list()) == 1 })
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
	require.FileExists(t, filepath.Join(w.driver.Config.Dir, "data/keep/f"))
}

func TestStagedDeviceWithoutPodIsUnstagedAfterARestart(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v")
	w.driver.Plan(func(call, _ string) csifake.Fault {
		if call == "NodeUnstageVolume" {
			return csifake.Fault{Code: codes.Unavailable}
		}
		return csifake.Fault{}
	})
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.driver.Plan(nil)
	w.restart()
	require.NoError(t, w.CleanupOrphans(t.Context(), func(types.UID) bool { return false }))
	w.allGone()
}

func TestErrorsOfDrivers(t *testing.T) {
	final, open := csifake.Fault{Code: codes.Internal}, csifake.Fault{Code: codes.DeadlineExceeded, Lost: true}
	for name, test := range map[string]struct {
		call   string
		fault  csifake.Fault
		undone []string // calls that the Pod's end must bring, if it ends right after the failure
	}{
		"stage, final":     {"NodeStageVolume", final, nil},
		"stage, open":      {"NodeStageVolume", open, []string{"NodeUnstageVolume v"}},
		"publish, final":   {"NodePublishVolume", final, []string{"NodeUnstageVolume v"}},
		"publish, open":    {"NodePublishVolume", open, []string{"NodeUnpublishVolume v", "NodeUnstageVolume v"}},
		"publish, lost":    {"NodePublishVolume", csifake.Fault{Code: codes.Internal, Lost: true}, []string{"NodeUnpublishVolume v", "NodeUnstageVolume v"}},
		"stage, hangs":     {"NodeStageVolume", csifake.Fault{Hang: true, Lost: true}, []string{"NodeUnstageVolume v"}},
		"publish, hangs":   {"NodePublishVolume", csifake.Fault{Hang: true}, []string{"NodeUnpublishVolume v", "NodeUnstageVolume v"}},
		"stage, too large": {"NodeStageVolume", csifake.Fault{Code: codes.ResourceExhausted, Lost: true}, []string{"NodeUnstageVolume v"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := deviceWorld(t)
			w.noAttach()
			w.device("v")
			w.driver.FailNext(test.call, test.fault)
			done := w.mounting(pod("a", claimVolume("data", "v")))
			if test.fault.Hang {
				w.await("the call", func() bool { return slices.Contains(w.driver.Calls(), test.call+" v") })
			} else {
				require.Contains(t, w.nextEvent(), "csi driver fake.csi.test: "+test.call+" of volume \"pv-v\"")
			}
			w.driver.Reset()
			require.NoError(t, w.Unmount(t.Context(), "a"))
			require.ErrorIs(t, w.result(done), volumemanager.ErrTerminating)
			w.gone("a")
			w.allGone()
			require.Equal(t, test.undone, w.driver.Calls())

			// And where the Pod stays, the next attempt succeeds.
			if test.fault.Hang {
				return
			}
			w.driver.FailNext(test.call, test.fault)
			done = w.mounting(pod("b", claimVolume("data", "v")))
			require.Contains(t, w.nextEvent(), test.call)
			w.stepUntil(100*time.Millisecond, "mounted", func() bool { return len(w.Volumes("b")) == 1 })
			require.NoError(t, w.result(done))
			require.NoError(t, w.Unmount(t.Context(), "b"))
			w.allGone()
		})
	}
}

func TestDriverThatComesLaterIsUsedAtOnce(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v")
	require.True(t, w.drivers.Remove(driverName, w.driver.Endpoint()))
	done := w.mounting(pod("a", claimVolume("data", "v")))
	require.Contains(t, w.nextEvent(), "driver name fake.csi.test not found in the list of registered CSI drivers")
	w.register()
	require.NoError(t, w.result(done), "the clock stands still: only the driver's coming can be the cause")
	require.True(t, w.drivers.Remove(driverName, w.driver.Endpoint()))
	gone := make(chan error, 1)
	go func() { gone <- w.Unmount(t.Context(), "a") }()
	require.Contains(t, w.nextEvent(), "FailedUnmount")
	w.register()
	require.NoError(t, w.result(gone))
	w.allGone()
}

func TestCSIDriverObjectThatComesLaterIsSeenAtOnce(t *testing.T) {
	w := deviceWorld(t)
	done := w.mounting(pod("a", vol("in", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}})))
	require.Contains(t, w.nextEvent(), `volume mode "Ephemeral" not supported by driver fake.csi.test (no CSIDriver object)`)
	w.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
	}})
	require.NoError(t, w.result(done), "the clock stands still: only the object's coming can be the cause")
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
}

func TestVolumeThatNeedsNoAttachmentAfterAll(t *testing.T) {
	w := deviceWorld(t)
	w.device("v")
	done := w.mounting(pod("a", claimVolume("data", "v")))
	w.await("it is in use", func() bool { return len(w.status.list()) == 1 })
	w.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}})
	require.NoError(t, w.result(done))
	w.await("it is in use no more", func() bool { return len(w.status.list()) == 0 })
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
}

func TestVolumeForOnePodOnly(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v", func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	})
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	done := w.mounting(pod("b", claimVolume("data", "v")))
	require.Contains(t, w.nextEvent(), "uses the ReadWriteOncePod access mode and is already in use by another pod")
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.NoError(t, w.result(done), "the clock stands still: only the other's end can be the cause")
	require.NoError(t, w.Unmount(t.Context(), "b"))
	w.allGone()
}

func TestVolumeGrowsWhileInUse(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	pv := w.device("v").DeepCopy()
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	require.NoError(t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""))
	w.stepUntil(time.Second, "grown", func() bool { return slices.Contains(w.driver.Calls(), "NodeExpandVolume v") })
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
	claim, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "v", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "2Gi", claim.Status.Capacity.Storage().String())
	require.Equal(t, int64(2<<30), csifake.Last[*csipb.NodeExpandVolumeRequest](w.driver).CapacityRange.RequiredBytes)
	stats, err := w.Stats(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, map[string]volume.Stats{"data": {Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}}, stats)
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
}

func TestVolumeGrowsAtOnceWhereClaimsAreTold(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	source := &claimSource{}
	w.claims = source
	w.restart()
	pv := w.device("v").DeepCopy()
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	require.False(t, w.clock.HasWaiters(), "nothing to look at now and then")
	grow := func(size string) {
		pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
		require.NoError(t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""))
		source.tell("ns", "v")
	}
	grow("2Gi")
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful", "the clock stands still: only the source can be the cause")
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")

	source.tell("ns", "another") // is nobody's here
	w.driver.FailNext("NodeExpandVolume", csifake.Fault{Code: codes.Internal})
	grow("3Gi")
	require.Contains(t, w.nextEvent(), "FileSystemResizeFailed")
	w.step(time.Minute)
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful", "what failed is tried again")
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
	w.await("nothing is looked at any more", func() bool { return !w.clock.HasWaiters() })

	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
	w.stop()
	require.Zero(t, source.subscribers())
	w.start()
}

func TestInlineVolumeIsPublishedAgainAndAgain(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach(func(object *storagev1.CSIDriver) {
		object.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		object.Spec.PodInfoOnMount, object.Spec.RequiresRepublish = ptr.To(true), ptr.To(true)
	})
	p := pod("a", vol("in", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}))
	require.NoError(t, w.Supported(p))
	require.NoError(t, w.Mount(t.Context(), p))
	require.Len(t, w.driver.Calls(), 1, "an inline volume is not staged")
	request := csifake.Last[*csipb.NodePublishVolumeRequest](w.driver)
	require.Equal(t, "true", request.VolumeContext["csi.storage.k8s.io/ephemeral"])
	require.Equal(t, "a", request.VolumeContext["csi.storage.k8s.io/pod.uid"])
	w.driver.FailNext("NodePublishVolume", csifake.Fault{Code: codes.Internal})
	w.stepUntil(time.Second, "published again", func() bool { return len(w.driver.Calls()) > 2 })
	require.Equal(t, 1, w.driver.Published(), "a failure does not take the mount away")
	w.restart()
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.Zero(t, w.driver.Published())
	w.gone("a")
}

func TestCleanStopGivesDevicesBack(t *testing.T) {
	w := deviceWorld(t)
	w.device("v")
	w.attach("v")
	p := pod("a", claimVolume("data", "v"))
	require.NoError(t, w.Mount(t.Context(), p))
	require.NoError(t, w.UnmountAll(t.Context()))
	require.Zero(t, w.driver.Published()+w.driver.Staged())
	w.restart()
	w.attach("v")
	require.NoError(t, w.Mount(t.Context(), p))
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
}

func TestVolumesOfDriversWithBadAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.PersistentVolume)
		err    string
	}{
		"name leads out": {func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "../../x" }, `use csi driver "../../x"`},
		"no handle":      {func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "" }, "volumeHandle is empty"},
		"missing secret": {func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "no"}
		}, "read secret ns/no"},
	} {
		t.Run(name, func(t *testing.T) {
			w := deviceWorld(t)
			w.noAttach()
			w.device("v", test.change)
			w.device("ok")
			done := w.mounting(pod("a", claimVolume("data", "v"), emptyDir("other")))
			require.Contains(t, w.nextEvent(), test.err)
			require.NoError(t, w.Mount(t.Context(), pod("b", claimVolume("data", "ok"))), "others are not affected")
			require.NoError(t, w.Unmount(t.Context(), "a"))
			require.Error(t, w.result(done))
			require.NoError(t, w.Unmount(t.Context(), "b"))
			w.allGone()
		})
	}
	require.Error(t, errors.Join(csi.CheckDriverName("a/b")))
}
