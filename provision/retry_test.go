package provision_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision"
)

func TestFailureIsRetriedUntilGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("disk full: 100%!d") })
		s := run(t, newFakeAPI(newClass("fast")), p,
			provision.FailedProvisionThreshold(2), provision.ExponentialBackOffOnError(false), provision.ResyncPeriod(time.Hour))
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		require.Equal(t, 1, p.callCount())
		s.advance(14 * time.Second)
		require.Equal(t, 1, p.callCount(), "no retry before its time")
		s.advance(10 * time.Minute)
		require.Equal(t, 3, p.callCount(), "two retries")
		events := s.drainEvents()
		require.Contains(t, events[1], `failed to provision volume with StorageClass "fast": disk full: 100%!d`)
		require.Contains(t, events[len(events)-1], "gave up provisioning after 2 retries")
		require.Empty(t, s.api.claim(t, "claim").Finalizers, "a claim that was given up is not held")

		s.advance(time.Hour)
		require.Equal(t, 4, p.callCount(), "a resync allows one more")
		s.api.updateClaim(t, "claim", func(c *corev1.PersistentVolumeClaim) { c.Annotations["fixed"] = "no" })
		s.advance(10 * time.Minute)
		require.Equal(t, 7, p.callCount(), "a change starts over")
		p.setProvisionErr(nil)
		s.api.updateClaim(t, "claim", func(c *corev1.PersistentVolumeClaim) { c.Annotations["fixed"] = "yes" })
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 1)
	})
}

func TestChangesEndTheBackoff(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"claim": func(s *fixture) {
			s.api.updateClaim(s.T, "claim", func(c *corev1.PersistentVolumeClaim) { c.Annotations["a"] = "b" })
		},
		"class": func(s *fixture) {
			client := s.api.client(nil).StorageV1().StorageClasses()
			class, err := client.Get(s.Context(), "fast", metav1.GetOptions{})
			require.NoError(s, err)
			class.AllowVolumeExpansion = ptr.To(true)
			_, err = client.Update(s.Context(), class, metav1.UpdateOptions{})
			require.NoError(s, err)
		},
	} {
		runSynctest(name, t, func(t *testing.T) {
			p := &fakeProvisioner{}
			p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("no") })
			s := run(t, newFakeAPI(newClass("fast")), p)
			s.api.createClaim(t, newClaim("claim", "fast"))
			synctest.Wait()
			require.Equal(t, 1, p.callCount())
			p.setProvisionErr(nil)
			change(s)
			synctest.Wait()
			require.Equal(t, 2, p.callCount())
			require.Len(t, s.api.volumes(t), 1)
		})
	}
}

// A try that a change brought forward and that fails is repeated after its own backoff, although a shorter one was
// planned before.
func TestFailureAfterAChangeIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("no") })
		s := run(t, newFakeAPI(newClass("fast")), p, provision.ResyncPeriod(0))
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.api.updateClaim(t, "claim", func(c *corev1.PersistentVolumeClaim) { c.Annotations["a"] = "b" })
		s.advance(16 * time.Second)
		require.Equal(t, 2, p.callCount(), "the first backoff counts no more")
		p.setProvisionErr(nil)
		s.advance(15 * time.Second)
		require.Equal(t, 3, p.callCount())
		require.Len(t, s.api.volumes(t), 1)
	})
}

// infeasibleProvisioner rejects every request as infeasible until a test changes that, and records the times of its calls.
type infeasibleProvisioner struct {
	fakeProvisioner
	callTimes []time.Time // guarded by simple's mu
}

func (r *infeasibleProvisioner) times() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.callTimes)
}

func newInfeasibleProvisioner() *infeasibleProvisioner {
	p := &infeasibleProvisioner{}
	p.setProvisionErr(func(provision.VolumeOptions) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.callTimes = append(p.callTimes, time.Now())
		return fmt.Errorf("create: %w", &provision.InfeasibleError{Err: errors.New("no such tier")})
	})
	return p
}

// A request that is wrong as it stands is not made again at the pace of other failures, but for ever: what is wrong may
// lie outside of what is watched. A resync changes nothing about it.
func TestInfeasibleRequestIsRepeatedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newInfeasibleProvisioner()
		s := run(t, newFakeAPI(newClass("fast")), p, provision.FailedProvisionThreshold(0), provision.ResyncPeriod(time.Minute))
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(4*time.Minute + 59*time.Second)
		require.Len(t, p.times(), 1)
		text := withReason(s.drainEvents(), "ProvisioningFailed")
		require.Len(t, text, 1)
		require.Contains(t, text[0], "no such tier; the request is infeasible")
		require.Contains(t, text[0], "otherwise after 5m0s at the earliest")
		s.advance(24 * time.Hour)
		at := p.times()
		for i := range at[1:] {
			require.GreaterOrEqual(t, at[i+1].Sub(at[i]), 5*time.Minute)
		}
		require.GreaterOrEqual(t, at[len(at)-1].Sub(at[len(at)-2]), 1000*time.Second, "the longer of both waits")
		p.setProvisionErr(nil)
		s.advance(1001 * time.Second)
		require.Len(t, s.api.volumes(t), 1)
	})
}

// Whatever may set the request right has it made again at once: the claim, its class, also one created anew under its
// name, and the selected node.
func TestInfeasibleRequestIsMadeAgainWhenItChanged(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"claim": func(s *fixture) {
			s.api.updateClaim(s.T, "claim", func(c *corev1.PersistentVolumeClaim) {
				c.Spec.VolumeAttributesClassName = ptr.To("other")
			})
		},
		"class": func(s *fixture) {
			client := s.api.client(nil).StorageV1().StorageClasses()
			require.NoError(s, client.Delete(s.Context(), "late", metav1.DeleteOptions{}))
			class := newClass("late")
			class.UID, class.Parameters = "another", map[string]string{"tier": "gold"}
			class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
			_, err := client.Create(s.Context(), class, metav1.CreateOptions{})
			require.NoError(s, err)
		},
		"node": func(s *fixture) {
			s.api.updateClaim(s.T, "claim", func(c *corev1.PersistentVolumeClaim) {
				c.Annotations["volume.kubernetes.io/selected-node"] = "node-2"
			})
		},
	} {
		runSynctest(name, t, func(t *testing.T) {
			class, claim := scheduled("node-1")
			api := newFakeAPI(class)
			for _, node := range []string{"node-1", "node-2"} {
				require.NoError(t, api.tracker.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}))
			}
			p := newInfeasibleProvisioner()
			s := run(t, api, p, provision.ResyncPeriod(0))
			s.api.createClaim(t, claim)
			s.advance(time.Second)
			require.Len(t, p.times(), 1)
			change(s)
			synctest.Wait()
			require.Len(t, p.times(), 2, "at once")
			s.advance(4 * time.Minute)
			require.Len(t, p.times(), 2, "and then slowly again")
			p.setProvisionErr(nil)
			s.advance(2 * time.Minute)
			require.Len(t, s.api.volumes(t), 1)
		})
	}
}

// It counts against the threshold like any failure, and what it waits for is forgotten with the claim.
func TestInfeasibleRequestIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newInfeasibleProvisioner()
		s := run(t, newFakeAPI(newClass("fast")), p, provision.FailedProvisionThreshold(2), provision.ResyncPeriod(0),
			provision.InfeasibleRetryInterval(time.Hour))
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(24 * time.Hour)
		require.Len(t, p.times(), 3)
		require.Equal(t, time.Hour, p.times()[2].Sub(p.times()[1]))
		require.Contains(t, s.drainEvents()[6], "gave up provisioning after 2 retries")
		require.Empty(t, s.api.claim(t, "claim").Finalizers)
		s.api.deleteClaim(t, "claim")
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		require.Len(t, p.times(), 4)
	})
}
