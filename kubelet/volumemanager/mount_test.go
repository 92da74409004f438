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
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

func TestAllKindsOfVolumes(t *testing.T) {
	w := newWorld(t)
	claim, pv, dir := w.claim("c")
	w.create(configMap("conf", "1"), secret("sec", "2"), claim, pv, hereNode())
	host := vol("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}})
	unused := secretVolume("unused", "there is no such secret")
	p := pod("a", emptyDir("disk"), memory("mem"), configMapVolume("conf", "conf"), secretVolume("sec", "sec"),
		tokenVolume("tok"), labelsVolume("lab"), claimVolume("data", "c"), host)
	p.Labels = map[string]string{"x": "y"}
	p.Spec.Volumes = append(p.Spec.Volumes, unused, vol("img", corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}))
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "img"})
	require.NoError(t, w.Supported(p))
	require.NoError(t, w.Mount(t.Context(), p))
	require.NoError(t, w.Mount(t.Context(), p), "again")

	volumes := w.Volumes("a")
	require.Len(t, volumes, 8, "only what a container mounts, and no image")
	require.Equal(t, dir, volumes["host"].Path)
	require.Equal(t, filepath.Join(w.root, "pods/a/volumes/kubernetes.io~empty-dir/disk"), volumes["disk"].Path)
	require.Equal(t, filepath.Join(w.root, "pods/a/volumes/kubernetes.io~local-volume/pv-c"), volumes["data"].Path)
	require.Equal(t, "pv-c", volumes["data"].Spec.PV.Name)
	require.True(t, volumes["sec"].ReadOnly)
	require.False(t, volumes["disk"].ReadOnly)
	require.Equal(t, "1", w.read("a", "conf", "k"))
	require.Equal(t, "2", w.read("a", "sec", "k"))
	require.Contains(t, w.read("a", "tok", "token"), "token until")
	require.Equal(t, `x="y"`, w.read("a", "lab", "labels"))
	require.NoError(t, os.WriteFile(filepath.Join(volumes["data"].Path, "f"), nil, 0o644))

	record, ok := w.timeline.Record("a")
	require.True(t, ok)
	require.Len(t, record.Stages, 8)
	for _, stage := range record.Stages {
		require.Equal(t, timeline.StageVolume, stage.Name)
		require.True(t, stage.Done() && stage.Error == "" && stage.Attempt == 1, "%+v", stage)
	}

	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.gone("a")
	require.FileExists(t, filepath.Join(dir, "f"), "the claim's data must stay")
	w.forgotten()
	require.Zero(t, w.tokens.Kept())
	require.NoError(t, w.RemovePodDir("a"))
	require.NoDirExists(t, volume.PodDir(w.root, "a"))
	require.NoError(t, w.Unmount(t.Context(), "never seen"))
	require.Empty(t, w.events.Events)
}

func TestMountWaitsForItsObjectAndNotForTheClock(t *testing.T) {
	w := newWorld(t)
	done := w.mounting(pod("a", configMapVolume("conf", "conf"), emptyDir("disk")))
	require.Contains(t, w.nextEvent(), `Warning FailedMount MountVolume.SetUp failed for volume "conf" : `+
		`get configmap ns/conf: configmaps "conf" not found`)
	w.awaitWatch("configmaps")
	w.await("the other volume does not wait", func() bool { return len(w.Volumes("a")) == 1 })
	w.create(configMap("conf", "1"))
	require.NoError(t, w.result(done))
	require.Equal(t, "1", w.read("a", "conf", "k"))
	require.Empty(t, w.events.Events, "one failure gives one event")
	record, _ := w.timeline.Record("a")
	var attempts []string
	for _, stage := range record.Stages {
		if stage.Subject == "conf" {
			attempts = append(attempts, stage.Error)
		}
	}
	require.GreaterOrEqual(t, len(attempts), 2)
	require.Empty(t, attempts[len(attempts)-1])
	require.Contains(t, attempts[0], "not found")
	require.NoError(t, w.Unmount(t.Context(), "a"))
}

func TestFailureIsTriedAgainAfterThePause(t *testing.T) {
	w := newWorld(t)
	dir, kind := filepath.Join(filepath.Dir(w.root), "host"), corev1.HostPathDirectory
	done := w.mounting(pod("a", vol("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: &kind}})))
	require.Contains(t, w.nextEvent(), "is not a directory")
	began := w.clock.Now()
	w.stepUntil(50*time.Millisecond, "third attempt", func() bool {
		record, _ := w.timeline.Record("a")
		return len(record.Stages) == 3 && record.Stages[2].Done()
	})
	require.GreaterOrEqual(t, w.clock.Since(began), 1500*time.Millisecond, "half a second, then one")
	require.NoError(t, os.Mkdir(dir, 0o755))
	w.stepUntil(50*time.Millisecond, "the volume", func() bool { return len(w.Volumes("a")) == 1 })
	require.NoError(t, w.result(done))
	require.Empty(t, w.events.Events, "the same failure again gives no event")
}

func TestSlowMountNamesWhatIsMissing(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- w.Mount(ctx, pod("a", secretVolume("one", "x"), emptyDir("two"))) }()
	require.Contains(t, w.nextEvent(), `secrets "x" not found`)
	w.await("two is mounted", func() bool { return len(w.Volumes("a")) == 1 })
	began := w.clock.Now()
	w.stepUntil(time.Second, "the event", func() bool { return len(w.events.Events) > 0 })
	require.GreaterOrEqual(t, w.clock.Since(began), 2*time.Minute)
	require.Contains(t, w.nextEvent(), "Unable to attach or mount volumes: unmounted volumes=[one]: timed out")
	cancel()
	err := w.result(result)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "unmounted volumes=[one]")
	require.ErrorContains(t, err, `secrets "x" not found`)
}

func TestUnmountEndsAMountThatWaits(t *testing.T) {
	w := newWorld(t)
	p := pod("a", configMapVolume("conf", "conf"), memory("mem"))
	done := w.mounting(p)
	w.nextEvent()
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.ErrorIs(t, w.result(done), volumemanager.ErrTerminating)
	w.gone("a")
	require.Zero(t, w.objects.Watched())
}

func TestUnsupportedVolumesAreNamed(t *testing.T) {
	w := newWorld(t)
	for field, p := range map[string]*corev1.Pod{
		"spec.volumes[v].iscsi":           pod("a", vol("v", corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}})),
		"spec.volumes[v].fc":              pod("b", vol("v", corev1.VolumeSource{FC: &corev1.FCVolumeSource{}})),
		"spec.volumes[v].emptyDir.medium": pod("c", vol("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Tape"}})),
	} {
		require.ErrorContains(t, w.Supported(p), field)
		err := w.Mount(t.Context(), p)
		require.True(t, volume.IsUnsupported(err), "%v", err)
		require.ErrorContains(t, err, field)
		require.Contains(t, w.nextEvent(), field)
		require.NoError(t, w.Unmount(t.Context(), p.UID))
	}
	p := pod("d", emptyDir("v"))
	p.Spec.InitContainers = []corev1.Container{{VolumeDevices: []corev1.VolumeDevice{{Name: "v"}}}}
	require.ErrorContains(t, w.Supported(p), "spec.volumes[v].emptyDir: volumeDevices names it")
	claim, pv, _ := w.claim("c")
	pv.Spec.Local, pv.Spec.FC = nil, &corev1.FCVolumeSource{}
	w.create(claim, pv, hereNode())
	require.ErrorContains(t, w.Mount(t.Context(), pod("e", claimVolume("v", "c"))), "PersistentVolume[pv-c].spec.fc")
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
			w := newWorld(t)
			claim, pv, _ := w.claim("c")
			broken, brokenPV := claim.DeepCopy(), pv.DeepCopy()
			test.breakIt(broken, brokenPV)
			w.create(broken, brokenPV, hereNode())
			done := w.mounting(pod("a", claimVolume("data", "c")))
			event := w.nextEvent()
			require.Contains(t, event, "use claim ns/c: ")
			require.Contains(t, event, test.err)
			w.awaitWatch("persistentvolumeclaims")
			pvs := corev1.SchemeGroupVersion.WithResource("persistentvolumes")
			claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
			require.NoError(t, w.client.Tracker().Update(pvs, pv, ""))
			require.NoError(t, w.client.Tracker().Update(claims, claim, "ns"))
			require.NoError(t, w.result(done), "the claim's event must be enough")
			require.Len(t, w.Volumes("a"), 1)
			require.NoError(t, w.Unmount(t.Context(), "a"))
		})
	}
}

func TestClaimThatMayNotBeWatchedIsReadEachSecond(t *testing.T) {
	w := newWorld(t)
	w.client.PrependWatchReactor("persistentvolumeclaims", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "c", errors.New("nodes may not"))
	})
	done := w.mounting(pod("a", claimVolume("data", "c")))
	require.Contains(t, w.nextEvent(), `"c" not found`)
	claim, pv, _ := w.claim("c")
	w.create(claim, pv, hereNode())
	began := w.clock.Now()
	w.stepUntil(100*time.Millisecond, "the volume", func() bool { return len(w.Volumes("a")) == 1 })
	require.LessOrEqual(t, w.clock.Since(began), 3*time.Second, "the pause must not grow beyond a second")
	require.NoError(t, w.result(done))
}

// TestClaimThatMayNotBeReadYet: the API server lets a node read a claim a moment after the node has seen the Pod.
func TestClaimThatMayNotBeReadYet(t *testing.T) {
	w := newWorld(t)
	claim, pv, _ := w.claim("c")
	w.create(claim, pv, hereNode())
	w.refusals.Store(3)
	done := w.mounting(pod("a", claimVolume("data", "c")))
	w.stepUntil(time.Millisecond, "the volume", func() bool { return len(w.Volumes("a")) == 1 })
	require.NoError(t, w.result(done))
	require.Empty(t, w.events.Events, "a moment is nothing to tell of")
	require.NoError(t, w.Unmount(t.Context(), "a"))

	w.refusals.Store(1000)
	done = w.mounting(pod("b", claimVolume("data", "c")))
	w.stepUntil(10*time.Millisecond, "an event", func() bool { return len(w.events.Events) > 0 })
	require.Contains(t, w.nextEvent(), "no relationship found", "what lasts is told")
	w.refusals.Store(0)
	told := w.clock.Now()
	w.stepUntil(10*time.Millisecond, "the volume", func() bool { return len(w.Volumes("b")) == 1 })
	require.NoError(t, w.result(done))
	require.Less(t, w.clock.Since(told), 30*time.Second, "the tries before count for no backoff")
}

// TestTokenThatMayNotBeHadYet: nor is a moment's refusal of a token a failure of its volume.
func TestTokenThatMayNotBeHadYet(t *testing.T) {
	w := newWorld(t)
	w.noTokens.Store(3)
	done := w.mounting(pod("a", tokenVolume("token")))
	w.stepUntil(time.Millisecond, "the volume", func() bool { return len(w.Volumes("a")) == 1 })
	require.NoError(t, w.result(done))
	require.Empty(t, w.events.Events)
}

func TestMemoryThatMayReachADiskIsTold(t *testing.T) {
	w := newWorld(t)
	w.maySwap = func() (bool, error) { return true, nil }
	w.restart()
	require.Contains(t, w.nextEvent(), "Warning PossibleMemoryBackedVolumesOnDisk ")
	w.maySwap = func() (bool, error) { return false, errors.New("nobody knows") }
	w.restart()
	require.NoError(t, w.Mount(t.Context(), pod("a", emptyDir("v"))), "the volumes are there all the same")
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.Empty(t, w.events.Events)
}

func TestClaimIsAwaitedWhereClaimsAreTold(t *testing.T) {
	w := newWorld(t)
	source := &claimSource{}
	w.claims = source
	w.restart()
	done := w.mounting(pod("a", claimVolume("data", "c")))
	require.Contains(t, w.nextEvent(), `"c" not found`)
	claim, pv, _ := w.claim("c")
	w.create(claim, pv, hereNode())
	source.tell("ns", "c")
	require.NoError(t, w.result(done), "the clock stands still: only the source can be the cause")
	for len(w.watching) > 0 {
		require.NotEqual(t, "persistentvolumeclaims", <-w.watching, "what is told of needs no watch")
	}
	require.NoError(t, w.Unmount(t.Context(), "a"))
}

func TestGenericEphemeralVolumeIsThePodsOwnClaim(t *testing.T) {
	w := newWorld(t)
	claim, pv, _ := w.claim("pod-a-scratch")
	w.create(claim, pv, hereNode())
	p := pod("a", vol("scratch", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}))
	done := w.mounting(p)
	require.Contains(t, w.nextEvent(), "was not created for pod ns/pod-a")
	w.awaitWatch("persistentvolumeclaims")
	owned := claim.DeepCopy()
	isController := true
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &isController}}
	require.NoError(t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), owned, "ns"))
	require.NoError(t, w.result(done))
}
