package provision_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision"
)

// scriptedProvisioner answers ProvisionExt with its states in turn, and then with success.
type scriptedProvisioner struct {
	fakeProvisioner
	states []provision.ProvisioningState
}

func (s *scriptedProvisioner) ProvisionExt(
	o provision.VolumeOptions,
) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, o)
	if n := len(s.calls); n <= len(s.states) {
		return nil, s.states[n-1], errors.New("not yet")
	}
	return newVolume(o), provision.ProvisioningFinished, nil
}

// The state of a failed call decides whether a claim that is deleted then keeps its intent.
func TestStateDecidesWhetherADeletedClaimIsFinished(t *testing.T) {
	const (
		background = provision.ProvisioningInBackground
		finished   = provision.ProvisioningFinished
		noChange   = provision.ProvisioningNoChange
	)
	for name, test := range map[string]struct {
		script []provision.ProvisioningState
		held   bool
	}{
		"finished":              {[]provision.ProvisioningState{finished}, false},
		"no change first":       {[]provision.ProvisioningState{noChange}, false},
		"background":            {[]provision.ProvisioningState{background, background, background}, true},
		"background, no change": {[]provision.ProvisioningState{background, noChange, background}, true},
	} {
		runSynctest(name, t, func(t *testing.T) {
			p := &scriptedProvisioner{states: test.script}
			s := run(t, newFakeAPI(newClass("fast")), p)
			s.api.createClaim(t, newClaim("claim", "fast"))
			s.advance(20 * time.Second)
			if !test.held {
				require.Equal(t, 2, p.callCount())
				return // succeeded by now; the deletion is below
			}
			s.api.deleteClaim(t, "claim")
			synctest.Wait()
			require.Len(t, s.api.claims(t), 1, "kept until its outcome is known")
			s.advance(time.Hour)
			require.Empty(t, s.api.claims(t))
			require.Len(t, s.api.volumes(t), 1)
			require.Equal(t, p.calls[0].PVName, p.calls[len(p.calls)-1].PVName)
			s.api.bindAndRelease(t)
			synctest.Wait()
			require.Empty(t, s.api.volumes(t))
			require.Len(t, p.deleted(), 1)
		})
		if test.held {
			continue
		}
		runSynctest(name+", deleted", t, func(t *testing.T) {
			p := &scriptedProvisioner{states: test.script}
			s := run(t, newFakeAPI(newClass("fast")), p)
			s.api.createClaim(t, newClaim("claim", "fast"))
			synctest.Wait()
			s.api.deleteClaim(t, "claim")
			s.advance(time.Hour)
			require.Empty(t, s.api.claims(t))
			require.Equal(t, 1, p.callCount(), "not called again")
			require.Empty(t, s.api.volumes(t))
		})
	}
}

func scheduled(node string) (*storagev1.StorageClass, *corev1.PersistentVolumeClaim) {
	class := newClass("late")
	class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	claim := newClaim("claim", "late")
	claim.Annotations["volume.kubernetes.io/selected-node"] = node
	return class, claim
}

func TestReschedule(t *testing.T) {
	for name, test := range map[string]struct {
		nodes  []string
		script []provision.ProvisioningState
	}{
		"asked for by the provisioner": {
			[]string{"one", "two"}, []provision.ProvisioningState{provision.ProvisioningReschedule}},
		"the node is gone": {[]string{"two"}, nil},
	} {
		runSynctest(name, t, func(t *testing.T) {
			class, claim := scheduled("one")
			api := newFakeAPI(class)
			for _, node := range test.nodes {
				_, err := api.client(nil).CoreV1().Nodes().Create(t.Context(),
					&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
				require.NoError(t, err)
			}
			p := &scriptedProvisioner{states: test.script}
			s := run(t, api, p)
			api.createClaim(t, claim)
			s.advance(time.Hour)
			left := api.claim(t, "claim")
			require.Empty(t, left.Annotations["volume.kubernetes.io/selected-node"])
			require.Empty(t, left.Finalizers)
			require.Empty(t, api.volumes(t))
			require.Len(t, withReason(s.drainEvents(), "Warning ProvisioningFailed"), 1)
			api.updateClaim(t, "claim", func(c *corev1.PersistentVolumeClaim) {
				c.Annotations["volume.kubernetes.io/selected-node"] = "two"
			})
			synctest.Wait()
			require.Len(t, api.volumes(t), 1)
			require.Equal(t, "two", p.calls[len(p.calls)-1].SelectedNode.Name)
		})
	}
}

// What was begun for a node is finished although the node is gone.
func TestNodeIsDeletedWhileInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class, claim := scheduled("one")
		api := newFakeAPI(class, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
		p := &scriptedProvisioner{states: []provision.ProvisioningState{provision.ProvisioningInBackground}}
		s := run(t, api, p)
		api.createClaim(t, claim)
		synctest.Wait()
		require.NoError(t, api.client(nil).CoreV1().Nodes().Delete(t.Context(), "one", metav1.DeleteOptions{}))
		s.advance(time.Minute)
		require.Len(t, api.volumes(t), 1)
		require.Equal(t, "one", p.calls[1].SelectedNode.Name)
	})
}

// lostNodeProvisioner creates a volume and loses the response; then it misses an object of the node until there is one.
type lostNodeProvisioner struct {
	fakeProvisioner
	found bool
}

func (p *lostNodeProvisioner) ProvisionExt(o provision.VolumeOptions) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, o)
	switch {
	case len(p.calls) == 1:
		return nil, provision.ProvisioningInBackground, errors.New("no response")
	case !p.found:
		return nil, provision.ProvisioningReschedule, fmt.Errorf("find the topology: %w",
			apierrors.NewNotFound(storagev1.Resource("csinodes"), o.SelectedNode.Name))
	}
	return newVolume(o), provision.ProvisioningFinished, nil
}

// A volume that an earlier call may have created does not get lost because an object of the node is missing at the next.
func TestRescheduleWhileAVolumeMayExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class, claim := scheduled("one")
		api := newFakeAPI(class, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
		p := &lostNodeProvisioner{}
		s := run(t, api, p)
		api.createClaim(t, claim)
		s.advance(time.Minute)
		left := api.claim(t, "claim")
		require.NotEmpty(t, left.Finalizers, "a volume may exist")
		require.NotEmpty(t, withReason(s.drainEvents(), "the claim is kept until that is known"))
		require.Equal(t, "one", left.Annotations["volume.kubernetes.io/selected-node"])
		p.mu.Lock()
		require.Greater(t, len(p.calls), 1)
		p.found = true
		p.mu.Unlock()
		s.advance(10 * time.Minute)
		require.Len(t, api.volumes(t), 1)
	})
}

// blockingProvisioner blocks until its context ends.
type blockingProvisioner struct{ fakeProvisioner }

func (p *blockingProvisioner) ProvisionContext(
	ctx context.Context, o provision.VolumeOptions,
) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	<-ctx.Done()
	return nil, provision.ProvisioningFinished, ctx.Err()
}

func (p *blockingProvisioner) DeleteContext(ctx context.Context, _ *corev1.PersistentVolume) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestContextEndsWithTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(newClass("fast"), released("volume")), &blockingProvisioner{})
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(time.Hour)
		s.stop()
		require.NotEmpty(t, s.api.claim(t, "claim").Finalizers, "a call that was cut short is never final")
		require.Len(t, s.api.volumes(t), 1)
	})
}

// A claim that turns away from us while a volume may exist is finished all the same (its volume would leak).
func TestClaimChangesProvisionerWhileInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &scriptedProvisioner{states: []provision.ProvisioningState{provision.ProvisioningInBackground}}
		s := run(t, newFakeAPI(newClass("fast")), p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.api.updateClaim(t, "claim", func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = nil
			c.Spec.VolumeName = "another"
		})
		s.advance(time.Minute)
		require.Len(t, s.api.volumes(t), 1)
		require.Empty(t, s.api.claim(t, "claim").Finalizers)
	})
}

// The provisioner may change what it is given.
func TestOptionsAreCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := newClass("fast")
		class.Parameters = map[string]string{"a": "b"}
		p := &fakeProvisioner{}
		fails := true
		p.setProvisionErr(func(o provision.VolumeOptions) error {
			o.Parameters["a"], o.PVC.Annotations["volume.kubernetes.io/storage-provisioner"] = "spoilt", "spoilt"
			if fails {
				fails = false
				return errors.New("once")
			}
			return nil
		})
		s := run(t, newFakeAPI(class), p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(time.Minute)
		require.Equal(t, 2, p.callCount())
		require.Len(t, s.api.volumes(t), 1)
	})
}

type nilProvisioner struct{ fakeProvisioner }

func (*nilProvisioner) ProvisionExt(provision.VolumeOptions) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	return nil, provision.ProvisioningFinished, nil
}

func TestNeitherVolumeNorErrorIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(newClass("fast")), &nilProvisioner{})
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		require.Len(t, withReason(s.drainEvents(), "neither a volume nor an error"), 1)
	})
}

// stateOnlyProvisioner is done whatever state it names.
type stateOnlyProvisioner struct{ fakeProvisioner }

func (*stateOnlyProvisioner) ProvisionExt(o provision.VolumeOptions) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	return newVolume(o), provision.ProvisioningInBackground, nil
}

func TestNoErrorIsSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &stateOnlyProvisioner{}
		s := run(t, newFakeAPI(newClass("fast")), p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 1)
		require.Zero(t, p.callCount(), "Provision is never called beside ProvisionExt")
	})
}
