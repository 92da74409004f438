package provision_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/provision"
)

// bind does what Kubernetes does for a claim whose volume is saved.
func (w *world) bind(t testing.TB, name string) {
	t.Helper()
	claim := w.claim(t, name)
	claim.Spec.VolumeName, claim.Status.Phase = "pvc-"+string(claim.UID), corev1.ClaimBound
	_, err := w.client(nil).CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// writtenEvents are the reasons of the events in the API. An event's name has its time, which stands still here, so only
// the first of each claim is taken.
func (w *world) writtenEvents(t testing.TB) string {
	t.Helper()
	list, err := w.client(nil).CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var reasons []string
	for _, event := range list.Items {
		reasons = append(reasons, event.Reason)
	}
	return strings.Join(reasons, " ")
}

// rushed has two claims provisioned, of which the first is bound and the second waits to be. The second one comes from an
// earlier run, so that somebody waits already when the first is provisioned: a call is no rush, and what is told of it may be
// written while it is under way.
func rushed(t *testing.T, p provision.Provisioner) (w *world, stop func()) {
	t.Helper()
	w = newWorld(newClass("fast"))
	earlier := run(t, w, &simple{})
	w.createClaim(t, newClaim("claim1", "fast"))
	synctest.Wait()
	earlier.stop()
	ctrl, err := provision.New(w.client(nil), driver, p, provision.LeaderElection(false), provision.ResyncPeriod(0))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ctrl.RunContext(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	synctest.Wait()
	w.createClaim(t, newClaim("claim0", "fast"))
	synctest.Wait()
	require.Len(t, w.volumes(t), 2)
	w.bind(t, "claim0")
	synctest.Wait()
	require.Len(t, w.claim(t, "claim0").Finalizers, 1, "it gives way")
	require.Empty(t, w.writtenEvents(t), "they give way")
	return w, stop
}

func TestWhatNobodyWaitsForGivesWay(t *testing.T) {
	bubble("until nobody waits", t, func(t *testing.T) {
		w, _ := rushed(t, &simple{})
		w.bind(t, "claim1")
		synctest.Wait()
		require.Empty(t, w.claim(t, "claim0").Finalizers)
		require.Empty(t, w.claim(t, "claim1").Finalizers)
		require.Equal(t, "Provisioning", w.writtenEvents(t))
	})
	bubble("for no more than half a minute", t, func(t *testing.T) {
		w, _ := rushed(t, &simple{})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Empty(t, w.claim(t, "claim0").Finalizers)
		require.Len(t, w.claim(t, "claim1").Finalizers, 1)
		require.Equal(t, "Provisioning", w.writtenEvents(t))
	})
	bubble("and not to who is stuck", t, func(t *testing.T) {
		w, _ := rushed(t, &simple{})
		time.Sleep(time.Minute)
		w.createClaim(t, newClaim("claim2", "fast"))
		time.Sleep(29 * time.Second)
		w.bind(t, "claim2")
		synctest.Wait()
		require.Len(t, w.claim(t, "claim2").Finalizers, 1, "claim1 may still be waited for")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, w.claim(t, "claim2").Finalizers)
	})
	bubble("but a deleted claim is waited for", t, func(t *testing.T) {
		w, _ := rushed(t, &simple{})
		w.deleteClaim(t, "claim0")
		synctest.Wait()
		require.Len(t, w.claims(t), 1)
	})
	bubble("nor does it outlast the controller", t, func(t *testing.T) {
		w, stop := rushed(t, &simple{})
		stop()
		require.Empty(t, w.claim(t, "claim0").Finalizers)
		require.Equal(t, "Provisioning", w.writtenEvents(t))
	})
}

// A Warning is written although claims wait: somebody has to act on it.
func TestWarningsDoNotGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &simple{}
		w, _ := rushed(t, p)
		p.answers(func(provision.VolumeOptions) error { return errors.New("no") })
		w.createClaim(t, newClaim("failing", "fast"))
		synctest.Wait()
		require.Equal(t, "ProvisioningFailed", w.writtenEvents(t))
	})
}

// A call that takes long is no rush: what is told of it, and what others left, is written meanwhile.
func TestSlowCallIsNoRush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &simple{}
		w, _ := rushed(t, p)
		p.answers(func(provision.VolumeOptions) error {
			time.Sleep(time.Minute) // the bubble's time
			return nil
		})
		w.createClaim(t, newClaim("slow", "fast"))
		w.bind(t, "claim1")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, w.claim(t, "claim0").Finalizers)
		require.Equal(t, "Provisioning Provisioning", w.writtenEvents(t))
		time.Sleep(time.Minute)
	})
}

// slowIntents is a client whose intents, from the second on, are not written before a volume is saved.
type slowIntents struct {
	kubernetes.Interface
	intents atomic.Int32
	saved   chan struct{}
	save    sync.Once
}

// IsWatchListSemanticsUnSupported passes on what client-go's informers ask a client that is no real one.
func (*slowIntents) IsWatchListSemanticsUnSupported() bool { return true }

// begun lets the intents be written.
func (s *slowIntents) begun() { s.save.Do(func() { close(s.saved) }) }

func (s *slowIntents) CoreV1() typedcorev1.CoreV1Interface {
	return slowCore{CoreV1Interface: s.Interface.CoreV1(), slow: s}
}

type slowCore struct {
	typedcorev1.CoreV1Interface
	slow *slowIntents
}

func (c slowCore) PersistentVolumeClaims(namespace string) typedcorev1.PersistentVolumeClaimInterface {
	return slowClaims{PersistentVolumeClaimInterface: c.CoreV1Interface.PersistentVolumeClaims(namespace), slow: c.slow}
}

func (c slowCore) PersistentVolumes() typedcorev1.PersistentVolumeInterface {
	return savedVolumes{PersistentVolumeInterface: c.CoreV1Interface.PersistentVolumes(), slow: c.slow}
}

type slowClaims struct {
	typedcorev1.PersistentVolumeClaimInterface
	slow *slowIntents
}

func (c slowClaims) Patch(
	ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, sub ...string,
) (*corev1.PersistentVolumeClaim, error) {
	if c.slow.intents.Add(1) > 1 {
		<-c.slow.saved
	}
	return c.PersistentVolumeClaimInterface.Patch(ctx, name, kind, data, options, sub...)
}

type savedVolumes struct {
	typedcorev1.PersistentVolumeInterface
	slow *slowIntents
}

func (v savedVolumes) Create(
	ctx context.Context, pv *corev1.PersistentVolume, options metav1.CreateOptions,
) (*corev1.PersistentVolume, error) {
	defer v.slow.begun()
	return v.PersistentVolumeInterface.Create(ctx, pv, options)
}

// The volumes of many claims at once are saved while the intents of others are still being written, so that Kubernetes has
// something to bind from the beginning. Else the intents here wait for ever, for they wait for a volume.
func TestVolumesDoNotQueueUpBehindIntents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(newClass("fast"))
		const count = 300
		for i := range count {
			w.createClaim(t, newClaim(fmt.Sprint("claim", i), "fast"))
		}
		slow := &slowIntents{Interface: w.client(nil), saved: make(chan struct{})}
		ctrl, err := provision.New(slow, driver, &simple{}, provision.LeaderElection(false),
			provision.EventRecorder(record.NewFakeRecorder(5000)))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ctrl.RunContext(ctx) }()
		defer func() {
			slow.begun() // a test that has failed ends, too
			cancel()
			require.NoError(t, <-done)
		}()
		synctest.Wait()
		require.Len(t, w.volumes(t), count)
	})
}
