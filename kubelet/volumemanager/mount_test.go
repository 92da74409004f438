package volumemanager_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

func TestAllKindsOfVolumes(t *testing.T) {
	f := newFixture(t)
	claim, pv, dir := f.newLocalClaim("c")
	f.create(configMap("conf", "1"), secret("sec", "2"), claim, pv, newNode())
	host := vol("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}})
	unused := secretVolume("unused", "missing")
	p := pod("a", emptyDir("disk"), memory("mem"), configMapVolume("conf", "conf"), secretVolume("sec", "sec"),
		tokenVolume("tok"), labelsVolume("lab"), claimVolume("data", "c"), host)
	p.Labels = map[string]string{"x": "y"}
	p.Spec.Volumes = append(p.Spec.Volumes, unused, vol("img", corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}))
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "img"})
	require.NoError(t, f.Supported(p))
	require.NoError(t, f.Mount(t.Context(), p))
	require.NoError(t, f.Mount(t.Context(), p), "again")

	volumes := f.Volumes("a")
	require.Len(t, volumes, 8, "only what a container mounts, and no image")
	require.Equal(t, dir, volumes["host"].Path)
	require.Equal(t, filepath.Join(f.root, "pods/a/volumes/kubernetes.io~empty-dir/disk"), volumes["disk"].Path)
	require.Equal(t, filepath.Join(f.root, "pods/a/volumes/kubernetes.io~local-volume/pv-c"), volumes["data"].Path)
	require.Equal(t, "pv-c", volumes["data"].Spec.PV.Name)
	require.True(t, volumes["sec"].ReadOnly)
	require.False(t, volumes["disk"].ReadOnly)
	require.Equal(t, "1", f.readFile("a", "conf", "k"))
	require.Equal(t, "2", f.readFile("a", "sec", "k"))
	require.Contains(t, f.readFile("a", "tok", "token"), "token until")
	require.Equal(t, `x="y"`, f.readFile("a", "lab", "labels"))
	require.NoError(t, os.WriteFile(filepath.Join(volumes["data"].Path, "f"), nil, 0o644))

	record, ok := f.timeline.Record("a")
	require.True(t, ok)
	require.Len(t, record.Stages, 8)
	for _, stage := range record.Stages {
		require.Equal(t, timeline.StageVolume, stage.Name)
		require.True(t, stage.Done() && stage.Error == "" && stage.Attempt == 1, "%+v", stage)
	}

	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnmounted("a")
	require.FileExists(t, filepath.Join(dir, "f"), "the claim's data must stay")
	f.waitObjectsReleased()
	require.Zero(t, f.tokens.Len())
	require.NoError(t, f.RemovePodDir("a"))
	require.NoDirExists(t, volume.PodDir(f.root, "a"))
	require.NoError(t, f.Unmount(t.Context(), "never seen"))
	require.Empty(t, f.events.Events)
}

func TestMountWaitsForItsObjectAndNotForTheClock(t *testing.T) {
	f := newFixture(t)
	done := f.startMount(pod("a", configMapVolume("conf", "conf"), emptyDir("disk")))
	require.Contains(t, f.nextEvent(), `Warning FailedMount MountVolume.SetUp failed for volume "conf" : `+
		`get configmap ns/conf: configmaps "conf" not found`)
	f.waitForWatch("configmaps")
	f.eventually("the other volume does not wait", func() bool { return len(f.Volumes("a")) == 1 })
	f.create(configMap("conf", "1"))
	require.NoError(t, f.result(done))
	require.Equal(t, "1", f.readFile("a", "conf", "k"))
	require.Empty(t, f.events.Events, "one failure gives one event")
	record, _ := f.timeline.Record("a")
	var attempts []string
	for _, stage := range record.Stages {
		if stage.Subject == "conf" {
			attempts = append(attempts, stage.Error)
		}
	}
	require.GreaterOrEqual(t, len(attempts), 2)
	require.Empty(t, attempts[len(attempts)-1])
	require.Contains(t, attempts[0], "not found")
	require.NoError(t, f.Unmount(t.Context(), "a"))
}

func TestFailureIsTriedAgainAfterThePause(t *testing.T) {
	f := newFixture(t)
	dir, kind := filepath.Join(filepath.Dir(f.root), "host"), corev1.HostPathDirectory
	done := f.startMount(pod("a", vol("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: &kind}})))
	require.Contains(t, f.nextEvent(), "is not a directory")
	require.EqualValues(t, 1, f.failures.Load(), "the event is not the first to say so")
	began := f.clock.Now()
	f.stepUntil(50*time.Millisecond, "third attempt", func() bool {
		record, _ := f.timeline.Record("a")
		return len(record.Stages) == 3 && record.Stages[2].Done()
	})
	require.GreaterOrEqual(t, f.clock.Since(began), 1500*time.Millisecond, "half a second, then one")
	require.NoError(t, os.Mkdir(dir, 0o755))
	f.stepUntil(50*time.Millisecond, "the volume", func() bool { return len(f.Volumes("a")) == 1 })
	require.NoError(t, f.result(done))
	require.Empty(t, f.events.Events, "the same failure again gives no event")
	require.GreaterOrEqual(t, f.failures.Load(), int32(3))
}

func TestSlowMountNamesWhatIsMissing(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- f.Mount(ctx, pod("a", secretVolume("one", "x"), emptyDir("two"))) }()
	require.Contains(t, f.nextEvent(), `secrets "x" not found`)
	f.eventually("two is mounted", func() bool { return len(f.Volumes("a")) == 1 })
	began := f.clock.Now()
	f.stepUntil(time.Second, "the event", func() bool { return len(f.events.Events) > 0 })
	require.GreaterOrEqual(t, f.clock.Since(began), 2*time.Minute)
	require.Contains(t, f.nextEvent(), "Unable to attach or mount volumes: unmounted volumes=[one]: timed out")
	cancel()
	err := f.result(result)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "unmounted volumes=[one]")
	require.ErrorContains(t, err, `secrets "x" not found`)
}

func TestUnmountEndsAMountThatWaits(t *testing.T) {
	f := newFixture(t)
	p := pod("a", configMapVolume("conf", "conf"), memory("mem"))
	done := f.startMount(p)
	f.nextEvent()
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.ErrorIs(t, f.result(done), volumemanager.ErrTerminating)
	f.requireUnmounted("a")
	require.Zero(t, f.objects.Watched())
}

func TestUnsupportedVolumesAreNamed(t *testing.T) {
	f := newFixture(t)
	for field, p := range map[string]*corev1.Pod{
		"spec.volumes[v].rbd":             pod("a", vol("v", corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}})),
		"spec.volumes[v].fc":              pod("b", vol("v", corev1.VolumeSource{FC: &corev1.FCVolumeSource{}})),
		"spec.volumes[v].emptyDir.medium": pod("c", vol("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Tape"}})),
	} {
		require.ErrorContains(t, f.Supported(p), field)
		err := f.Mount(t.Context(), p)
		require.True(t, volume.IsUnsupported(err), "%v", err)
		require.ErrorContains(t, err, field)
		require.Contains(t, f.nextEvent(), field)
		require.NoError(t, f.Unmount(t.Context(), p.UID))
	}
	p := pod("d", emptyDir("v"))
	p.Spec.InitContainers = []corev1.Container{{VolumeDevices: []corev1.VolumeDevice{{Name: "v"}}}}
	require.ErrorContains(t, f.Supported(p), "spec.volumes[v].emptyDir: volumeDevices names it")
	claim, pv, _ := f.newLocalClaim("c")
	pv.Spec.Local, pv.Spec.FC = nil, &corev1.FCVolumeSource{}
	f.create(claim, pv, newNode())
	require.ErrorContains(t, f.Mount(t.Context(), pod("e", claimVolume("v", "c"))), "PersistentVolume[pv-c].spec.fc")
}

func TestClaims(t *testing.T) {
	now := metav1.Now()
	block := corev1.PersistentVolumeBlock
	for name, test := range map[string]struct {
		breakIt func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)
		err     string
	}{
		"not bound": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Status.Phase = corev1.ClaimPending
		},
			`it is not bound to a volume yet, its phase is "Pending"`},
		"deleted": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.DeletionTimestamp = &now },
			"it is being deleted"},
		"bound to another": {func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "other" },
			`persistent volume "pv-c" is bound to another claim`},
		"block": {func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = &block },
			"volumeMode Block"},
		"no volume": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.Spec.VolumeName = "x" },
			`get its volume: persistentvolumes "x" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			claim, pv, _ := f.newLocalClaim("c")
			broken, brokenPV := claim.DeepCopy(), pv.DeepCopy()
			test.breakIt(broken, brokenPV)
			f.create(broken, brokenPV, newNode())
			done := f.startMount(pod("a", claimVolume("data", "c")))
			event := f.nextEvent()
			require.Contains(t, event, "use claim ns/c: ")
			require.Contains(t, event, test.err)
			f.waitForWatch("persistentvolumeclaims")
			pvs := corev1.SchemeGroupVersion.WithResource("persistentvolumes")
			claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
			require.NoError(t, f.client.Tracker().Update(pvs, pv, ""))
			require.NoError(t, f.client.Tracker().Update(claims, claim, "ns"))
			require.NoError(t, f.result(done), "the claim's event must be enough")
			require.Len(t, f.Volumes("a"), 1)
			require.NoError(t, f.Unmount(t.Context(), "a"))
		})
	}
}

func TestVolumeOfAnotherNodeIsNotMounted(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.PersistentVolume)
		pod    func(types.UID, ...corev1.Volume) *corev1.Pod
		event  string
	}{
		"hostPath": {func(pv *corev1.PersistentVolume) {
			pv.Spec.HostPath, pv.Spec.Local = &corev1.HostPathVolumeSource{Path: pv.Spec.Local.Path}, nil
		}, pod, "FailedMount MountVolume.NodeAffinity check failed"},
		"local": {func(*corev1.PersistentVolume) {}, pod, "FailedMount MountVolume.NodeAffinity check failed"},
		"block": {func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }, blockPod,
			"FailedMapVolume MapVolume.NodeAffinity check failed"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			claim, pv, _ := f.newLocalClaim("c")
			test.change(pv)
			node := newNode()
			node.Labels[corev1.LabelHostname] = "elsewhere"
			f.create(claim, pv, node)
			done := f.startMount(test.pod("a", claimVolume("data", "c")))
			require.Equal(t, "Warning "+test.event+` for volume "data" : compare spec.nodeAffinity of persistent volume "pv-c" `+
				`with the labels of node "here": no matching NodeSelectorTerms`, f.nextEvent())
			require.NoError(t, f.Unmount(t.Context(), "a"))
			require.ErrorIs(t, f.result(done), volumemanager.ErrTerminating)
			f.requireUnmounted("a")
		})
	}
}

func TestClaimThatMayNotBeWatchedIsReadEachSecond(t *testing.T) {
	f := newFixture(t)
	f.client.PrependWatchReactor("persistentvolumeclaims", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "c", errors.New("nodes may not"))
	})
	done := f.startMount(pod("a", claimVolume("data", "c")))
	require.Contains(t, f.nextEvent(), `"c" not found`)
	claim, pv, _ := f.newLocalClaim("c")
	f.create(claim, pv, newNode())
	began := f.clock.Now()
	f.stepUntil(100*time.Millisecond, "the volume", func() bool { return len(f.Volumes("a")) == 1 })
	require.LessOrEqual(t, f.clock.Since(began), 3*time.Second, "the pause must not grow beyond a second")
	require.NoError(t, f.result(done))
}

// TestClaimThatMayNotBeReadYet: the API server lets a node read a claim a moment after the node has seen the Pod.
func TestClaimThatMayNotBeReadYet(t *testing.T) {
	f := newFixture(t)
	claim, pv, _ := f.newLocalClaim("c")
	f.create(claim, pv, newNode())
	f.claimRefusals.Store(3)
	done := f.startMount(pod("a", claimVolume("data", "c")))
	f.stepUntil(time.Millisecond, "the volume", func() bool { return len(f.Volumes("a")) == 1 })
	require.NoError(t, f.result(done))
	require.Empty(t, f.events.Events, "a short refusal causes no event")
	require.NoError(t, f.Unmount(t.Context(), "a"))

	f.claimRefusals.Store(1000)
	done = f.startMount(pod("b", claimVolume("data", "c")))
	f.stepUntil(10*time.Millisecond, "an event", func() bool { return len(f.events.Events) > 0 })
	require.Contains(t, f.nextEvent(), "no relationship found", "a longer one does")
	f.claimRefusals.Store(0)
	updated := f.clock.Now()
	f.stepUntil(10*time.Millisecond, "the volume", func() bool { return len(f.Volumes("b")) == 1 })
	require.NoError(t, f.result(done))
	require.Less(t, f.clock.Since(updated), 30*time.Second, "the attempts before cause no backoff")
}

// TestTokenThatMayNotBeHadYet: a short refusal of a token causes no failure of its volume, either.
func TestTokenThatMayNotBeHadYet(t *testing.T) {
	f := newFixture(t)
	f.tokenRefusals.Store(3)
	done := f.startMount(pod("a", tokenVolume("token")))
	f.stepUntil(time.Millisecond, "the volume", func() bool { return len(f.Volumes("a")) == 1 })
	require.NoError(t, f.result(done))
	require.Empty(t, f.events.Events)
}

func TestMemoryThatMayReachADiskIsReported(t *testing.T) {
	f := newFixture(t)
	f.maySwap = func() (bool, error) { return true, nil }
	f.restart()
	require.Contains(t, f.nextEvent(), "Warning PossibleMemoryBackedVolumesOnDisk ")
	f.maySwap = func() (bool, error) { return false, errors.New("unknown") }
	f.restart()
	require.NoError(t, f.Mount(t.Context(), pod("a", emptyDir("v"))), "the volumes are mounted all the same")
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.Empty(t, f.events.Events)
}

func TestMountContinuesWithAClaimEvent(t *testing.T) {
	f := newFixture(t)
	source := &claimSource{}
	f.claims = source
	f.restart()
	done := f.startMount(pod("a", claimVolume("data", "c")))
	require.Contains(t, f.nextEvent(), `"c" not found`)
	claim, pv, _ := f.newLocalClaim("c")
	f.create(claim, pv, newNode())
	source.notify("ns", "c")
	require.NoError(t, f.result(done), "the clock stands still: only the source can be the cause")
	for len(f.openedWatches) > 0 {
		require.NotEqual(t, "persistentvolumeclaims", <-f.openedWatches, "a claim of the ClaimSource needs no watch")
	}
	require.NoError(t, f.Unmount(t.Context(), "a"))
}

// TestVolumesOfClaimsAreKnownBeforeTheyAreMounted waits for the PersistentVolumes of a Pod, which are known as soon as its
// claims are.
func TestVolumesOfClaimsAreKnownBeforeTheyAreMounted(t *testing.T) {
	f := newFixture(t)
	p := pod("a", claimVolume("data", "c"))
	none, err := f.PersistentVolumes(t.Context(), pod("b", emptyDir("v")))
	require.NoError(t, err)
	require.Empty(t, none)
	found := make(chan []*corev1.PersistentVolume, 1)
	go func() {
		volumes, _ := f.PersistentVolumes(t.Context(), p)
		found <- volumes
	}()
	done := f.startMount(p)
	require.Contains(t, f.nextEvent(), `"c" not found`)
	require.Empty(t, found)
	claim, pv, _ := f.newLocalClaim("c")
	f.create(pv, newNode(), claim) // the claim last: its event may cause the next attempt at once
	f.waitForWatch("persistentvolumeclaims")
	require.NoError(t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"))
	volumes := <-found
	require.Len(t, volumes, 1)
	require.Equal(t, pv.Name, volumes[0].Name)
	require.NoError(t, f.result(done))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.PersistentVolumes(ctx, pod("d", claimVolume("data", "missing")))
	require.ErrorContains(t, err, "wait for the claims of pod ns/pod-d to be bound")
	require.NoError(t, f.Unmount(t.Context(), "a"))
}

func TestGenericEphemeralVolumeIsThePodsOwnClaim(t *testing.T) {
	f := newFixture(t)
	claim, pv, _ := f.newLocalClaim("pod-a-scratch")
	f.create(claim, pv, newNode())
	p := pod("a", vol("scratch", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}))
	done := f.startMount(p)
	require.Contains(t, f.nextEvent(), "was not created for pod ns/pod-a")
	f.waitForWatch("persistentvolumeclaims")
	owned := claim.DeepCopy()
	isController := true
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &isController}}
	require.NoError(t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), owned, "ns"))
	require.NoError(t, f.result(done))
}
