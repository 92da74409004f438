package provision_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
func (api *fakeAPI) bind(t testing.TB, name string) {
	t.Helper()
	claim := api.claim(t, name)
	claim.Spec.VolumeName, claim.Status.Phase = "pvc-"+string(claim.UID), corev1.ClaimBound
	_, err := api.client(nil).CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// writtenEvents are the reasons of the events that were written, sorted.
func (api *fakeAPI) writtenEvents() string {
	api.mu.Lock()
	defer api.mu.Unlock()
	return strings.Join(slices.Sorted(slices.Values(api.events)), " ")
}

// newContendedFixture provisions two claims, of which the first is bound and the second waits to be. The second one comes
// from an earlier run, so that a claim waits when the first is provisioned: during a call no writes yield, and its events
// could be written.
func newContendedFixture(t *testing.T, p provision.Provisioner) (api *fakeAPI, stop func()) {
	t.Helper()
	api = newFakeAPI(newClass("fast"))
	earlier := run(t, api, &fakeProvisioner{})
	api.createClaim(t, newClaim("claim1", "fast"))
	synctest.Wait()
	earlier.stop()
	ctrl, err := provision.New(api.client(nil), driverName, p, provision.LeaderElection(false), provision.ResyncPeriod(0))
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
	api.createClaim(t, newClaim("claim0", "fast"))
	synctest.Wait()
	require.Len(t, api.volumes(t), 2)
	api.bind(t, "claim0")
	synctest.Wait()
	require.Len(t, api.claim(t, "claim0").Finalizers, 1, "the removal yields")
	require.Empty(t, api.writtenEvents(), "they yield")
	return api, stop
}

func TestUnneededWritesYield(t *testing.T) {
	runSynctest("until no claim waits", t, func(t *testing.T) {
		api, _ := newContendedFixture(t, &fakeProvisioner{})
		api.bind(t, "claim1")
		synctest.Wait()
		require.Empty(t, api.claim(t, "claim0").Finalizers)
		require.Empty(t, api.claim(t, "claim1").Finalizers)
		require.Equal(t, "Provisioning ProvisioningSucceeded", api.writtenEvents())
	})
	runSynctest("what is going on for less than a second", t, func(t *testing.T) {
		api, _ := newContendedFixture(t, &fakeProvisioner{})
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, "Provisioning", api.writtenEvents())
		require.Len(t, api.claim(t, "claim0").Finalizers, 1, "its removal still yields")
	})
	runSynctest("for no more than half a minute", t, func(t *testing.T) {
		api, _ := newContendedFixture(t, &fakeProvisioner{})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Empty(t, api.claim(t, "claim0").Finalizers)
		require.Len(t, api.claim(t, "claim1").Finalizers, 1)
		require.Equal(t, "Provisioning ProvisioningSucceeded", api.writtenEvents())
	})
	runSynctest("and not to who is stuck", t, func(t *testing.T) {
		api, _ := newContendedFixture(t, &fakeProvisioner{})
		time.Sleep(time.Minute)
		api.createClaim(t, newClaim("claim2", "fast"))
		time.Sleep(29 * time.Second)
		api.bind(t, "claim2")
		synctest.Wait()
		require.Len(t, api.claim(t, "claim2").Finalizers, 1, "claim1 may still be waited for")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, api.claim(t, "claim2").Finalizers)
	})
	runSynctest("but a deleted claim is waited for", t, func(t *testing.T) {
		api, _ := newContendedFixture(t, &fakeProvisioner{})
		api.deleteClaim(t, "claim0")
		synctest.Wait()
		require.Len(t, api.claims(t), 1)
	})
	runSynctest("nor does it outlast the controller", t, func(t *testing.T) {
		api, stop := newContendedFixture(t, &fakeProvisioner{})
		stop()
		require.Empty(t, api.claim(t, "claim0").Finalizers)
		require.Equal(t, "Provisioning ProvisioningSucceeded", api.writtenEvents())
	})
}

// A Warning is written although claims wait: an administrator has to act on it.
func TestWarningsDoNotYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		api, _ := newContendedFixture(t, p)
		p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("no") })
		api.createClaim(t, newClaim("failing", "fast"))
		synctest.Wait()
		require.Equal(t, "ProvisioningFailed", api.writtenEvents())
	})
}

// Writes do not yield to a claim whose call takes long.
func TestSlowCallDoesNotMakeWritesYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		api, _ := newContendedFixture(t, p)
		p.setProvisionErr(func(provision.VolumeOptions) error {
			time.Sleep(time.Minute) // the bubble's time
			return nil
		})
		api.createClaim(t, newClaim("slow", "fast"))
		api.bind(t, "claim1")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, api.claim(t, "claim0").Finalizers)
		require.Equal(t, "Provisioning Provisioning ProvisioningSucceeded", api.writtenEvents())
		time.Sleep(time.Minute)
	})
}

// slowIntentClient is a client whose intents, from the second on, are not written before a volume is saved.
type slowIntentClient struct {
	kubernetes.Interface
	intents atomic.Int32
	saved   chan struct{}
	save    sync.Once
}

// IsWatchListSemanticsUnSupported passes on what client-go's informers ask a client that is no real one.
func (*slowIntentClient) IsWatchListSemanticsUnSupported() bool { return true }

// allowIntents lets the intents be written.
func (s *slowIntentClient) allowIntents() { s.save.Do(func() { close(s.saved) }) }

func (s *slowIntentClient) CoreV1() typedcorev1.CoreV1Interface {
	return slowCore{CoreV1Interface: s.Interface.CoreV1(), slow: s}
}

type slowCore struct {
	typedcorev1.CoreV1Interface
	slow *slowIntentClient
}

func (c slowCore) PersistentVolumeClaims(namespace string) typedcorev1.PersistentVolumeClaimInterface {
	return slowClaims{PersistentVolumeClaimInterface: c.CoreV1Interface.PersistentVolumeClaims(namespace), slow: c.slow}
}

func (c slowCore) PersistentVolumes() typedcorev1.PersistentVolumeInterface {
	return savedVolumes{PersistentVolumeInterface: c.CoreV1Interface.PersistentVolumes(), slow: c.slow}
}

type slowClaims struct {
	typedcorev1.PersistentVolumeClaimInterface
	slow *slowIntentClient
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
	slow *slowIntentClient
}

func (v savedVolumes) Create(
	ctx context.Context, pv *corev1.PersistentVolume, options metav1.CreateOptions,
) (*corev1.PersistentVolume, error) {
	defer v.slow.allowIntents()
	return v.PersistentVolumeInterface.Create(ctx, pv, options)
}

// The volumes of many claims at once are saved while the intents of others are still being written, so that Kubernetes has
// something to bind from the beginning. Else the intents here wait for ever, for they wait for a volume.
func TestVolumesDoNotQueueUpBehindIntents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(newClass("fast"))
		const count = 300
		for i := range count {
			api.createClaim(t, newClaim(fmt.Sprint("claim", i), "fast"))
		}
		slow := &slowIntentClient{Interface: api.client(nil), saved: make(chan struct{})}
		ctrl, err := provision.New(slow, driverName, &fakeProvisioner{}, provision.LeaderElection(false),
			provision.EventRecorder(record.NewFakeRecorder(5000)))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ctrl.RunContext(ctx) }()
		defer func() {
			slow.allowIntents() // a test that has failed ends, too
			cancel()
			require.NoError(t, <-done)
		}()
		synctest.Wait()
		require.Len(t, api.volumes(t), count)
	})
}
