package provision_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/timeline"
)

func TestClaimGetsItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := newClass("fast")
		class.Parameters = map[string]string{"tier": "gold"}
		class.MountOptions = []string{"noatime"}
		p := &fakeProvisioner{}
		rec := timeline.New(clock.RealClock{}, 0)
		s := run(t, newFakeAPI(class), p, provision.Timeline(rec))
		claim := s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()

		pvs := s.api.volumes(t)
		require.Len(t, pvs, 1)
		pv := pvs[0]
		require.Equal(t, "pvc-"+string(claim.UID), pv.Name)
		require.Equal(t, driverName, pv.Annotations["pv.kubernetes.io/provisioned-by"])
		require.Equal(t, "fast", pv.Spec.StorageClassName)
		require.Equal(t, []string{"external-provisioner.volume.kubernetes.io/finalizer"}, pv.Finalizers)
		ref := pv.Spec.ClaimRef
		require.Equal(t, []string{"PersistentVolumeClaim", "v1", "ns", "claim", string(claim.UID)},
			[]string{ref.Kind, ref.APIVersion, ref.Namespace, ref.Name, string(ref.UID)})
		require.Equal(t, []string{
			`Normal Provisioning External provisioner is provisioning volume for claim "ns/claim"`,
			"Normal ProvisioningSucceeded Successfully provisioned volume " + pv.Name,
		}, s.drainEvents())

		require.Equal(t, 1, p.callCount())
		o := p.calls[0]
		require.Equal(t, corev1.PersistentVolumeReclaimDelete, o.PersistentVolumeReclaimPolicy, "nil means Delete")
		require.Equal(t, class.Parameters, o.Parameters)
		require.Equal(t, class.MountOptions, o.MountOptions)
		require.Equal(t, claim.UID, o.PVC.UID)

		s.api.bindAndRelease(t)
		synctest.Wait()
		require.Empty(t, s.api.claim(t, "claim").Finalizers)
		record, ok := rec.Record(claim.UID)
		require.True(t, ok)
		var stages []string
		for _, stage := range record.Stages {
			require.True(t, stage.Done(), stage.Name)
			require.Empty(t, stage.Error)
			stages = append(stages, stage.Name)
		}
		require.Equal(t, []string{provision.StageQueued, timeline.StageProvisioning, timeline.StageSaving,
			timeline.StageBound}, stages)
	})
}

func TestOnePVWriteAndTwoPatchesPerClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(newClass("fast")), &fakeProvisioner{})
		const count = 500
		for i := range count {
			s.api.createClaim(t, newClaim(fmt.Sprint("claim", i), "fast"))
			if i%maxChangesPerStep == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		require.Len(t, s.api.volumes(t), count)
		require.Equal(t, count, s.api.writeCount("create persistentvolumes"))
		s.api.bindAndRelease(t)
		synctest.Wait()
		require.Equal(t, 2*count, s.api.writeCount("patch persistentvolumeclaims"))
		require.Zero(t, s.api.writeCount("patch persistentvolumes"))
		require.Len(t, s.drainEvents(), 2*count)

		before := fmt.Sprint(s.api.writes)
		s.advance(time.Hour) // four resyncs
		require.Equal(t, before, fmt.Sprint(s.api.writes), "a controller at rest writes nothing")
	})
}

func TestWhichClaimsAreServed(t *testing.T) {
	late := newClass("late")
	late.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	foreign := newClass("foreign")
	foreign.Provisioner = "example.com/other"
	alias := newClass("alias")
	alias.Provisioner = "example.com/alias"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	annotate := func(key, value string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Annotations[key] = value }
	}
	const ga, beta = "volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"
	for name, test := range map[string]struct {
		class  string
		change func(*corev1.PersistentVolumeClaim)
		served bool
	}{
		"plain":            {"fast", nil, true},
		"foreign":          {"fast", annotate(ga, "example.com/other"), false},
		"no annotation":    {"fast", func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }, false},
		"beta annotation":  {"fast", func(c *corev1.PersistentVolumeClaim) { c.Annotations = map[string]string{beta: driverName} }, true},
		"both annotations": {"fast", annotate(beta, "example.com/other"), true},
		"alias":            {"alias", annotate(ga, "example.com/alias"), true},
		"foreign class":    {"foreign", nil, false},
		"missing class":    {"missing", nil, false},
		"class annotation": {"missing", annotate("volume.beta.kubernetes.io/storage-class", "fast"), true},
		"has volume":       {"fast", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "mine" }, false},
		"no consumer":      {"late", nil, false},
		"consumer":         {"late", annotate("volume.kubernetes.io/selected-node", "node"), true},
		"block": {"fast", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, false},
	} {
		runSynctest(name, t, func(t *testing.T) {
			p := &fakeProvisioner{}
			s := run(t, newFakeAPI(newClass("fast"), late, foreign, alias, node), p,
				provision.AdditionalProvisionerNames([]string{"example.com/alias"}))
			claim := newClaim("claim", test.class)
			if test.change != nil {
				test.change(claim)
			}
			s.api.createClaim(t, claim)
			synctest.Wait()
			require.Equal(t, test.served, p.callCount() == 1)
			require.Equal(t, test.served, len(s.api.volumes(t)) == 1)
			if !test.served {
				require.Zero(t, s.api.writeCount("patch persistentvolumeclaims"))
			}
			if name == "consumer" {
				require.Equal(t, "node", p.calls[0].SelectedNode.Name)
			}
			if name == "block" {
				require.Equal(t, []string{"Warning ProvisioningFailed " + driverName +
					" does not support block volume provisioning"}, s.drainEvents())
			}
		})
	}
}

func TestClassMayComeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(), &fakeProvisioner{})
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(time.Second)
		require.Empty(t, s.api.volumes(t))
		require.Empty(t, s.drainEvents())
		_, err := s.api.client(nil).StorageV1().StorageClasses().Create(t.Context(), newClass("fast"), metav1.CreateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 1)
	})
}

func TestIgnoredClaimIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		p.setProvisionErr(func(provision.VolumeOptions) error {
			return fmt.Errorf("look: %w", &provision.IgnoredError{Reason: "not mine"})
		})
		s := run(t, newFakeAPI(newClass("fast")), p, provision.ResyncPeriod(0))
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(time.Hour)
		require.Equal(t, 1, p.callCount())
		require.Empty(t, s.api.claim(t, "claim").Finalizers)
		require.Len(t, s.drainEvents(), 1, "only that it was tried")
		requireCounts(t, s.ctrl, counts{})
	})
}

func TestSlowCallsDelayNoOtherClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		p.setProvisionErr(func(o provision.VolumeOptions) error {
			if o.PVC.Labels["slow"] != "" {
				time.Sleep(time.Hour)
			}
			return nil
		})
		s := run(t, newFakeAPI(newClass("fast")), p)
		for i := range provision.DefaultThreadiness - 1 {
			claim := newClaim(fmt.Sprint("slow", i), "fast")
			claim.Labels = map[string]string{"slow": "yes"}
			s.api.createClaim(t, claim)
		}
		synctest.Wait()
		for i := range 100 {
			s.api.createClaim(t, newClaim(fmt.Sprint("claim", i), "fast"))
			if i%maxChangesPerStep == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 100)
		s.advance(time.Hour)
		require.Len(t, s.api.volumes(t), 103)
	})
}

func TestStopFinishesAndSavesWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		p.setProvisionErr(func(provision.VolumeOptions) error { time.Sleep(time.Minute); return nil })
		api := newFakeAPI(newClass("fast"))
		c, err := provision.New(api.client(nil), driverName, p, provision.LeaderElection(false), provision.Threadiness(1))
		require.NoError(t, err)
		stop, done := make(chan struct{}), make(chan struct{})
		go func() { defer close(done); c.Run(stop) }()
		api.createClaim(t, newClaim("one", "fast"))
		api.createClaim(t, newClaim("two", "fast"))
		synctest.Wait()
		require.True(t, c.HasRun())
		require.EqualError(t, provision.Threadiness(3)(c), "cannot call option functions after controller has Run")
		close(stop)
		<-done
		require.Equal(t, 1, p.callCount(), "nothing new is begun")
		require.Len(t, api.volumes(t), 1, "what was made is saved")
		require.Error(t, c.RunContext(t.Context()), "a controller runs once")
	})
}
