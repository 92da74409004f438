package provision_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/provision"
)

const (
	inTree     = "kubernetes.io/disk"
	migratedTo = "pv.kubernetes.io/migrated-to"
)

// TestClaimOfAnInTreeClass has the claim that Kubernetes hands over to the driver that an in-tree plugin is migrated to.
func TestClaimOfAnInTreeClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := newClass("old")
		class.Provisioner = inTree
		p := &fakeProvisioner{}
		s := run(t, newFakeAPI(class), p)
		claim := newClaim("claim", "old")
		claim.Annotations[migratedTo] = driverName
		s.api.createClaim(t, claim)
		s.advance(time.Minute)
		require.Zero(t, p.callCount())
		require.Equal(t, []string{"Warning ProvisioningFailed StorageClass \"old\" is of provisioner \"" + inTree + "\", which " + driverName +
			" does not stand in for: create the claim again with a StorageClass of provisioner " + driverName}, s.drainEvents())
	})
}

// TestReleasedVolumeOfAnInTreePlugin has what Kubernetes leaves to the driver that the plugin is migrated to.
func TestReleasedVolumeOfAnInTreePlugin(t *testing.T) {
	for name, options := range map[string][]provision.Option{
		"not served": nil, "served": {provision.AdditionalProvisionerNames([]string{inTree})},
	} {
		runSynctest(name, t, func(t *testing.T) {
			pv := released("volume")
			pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": inTree, migratedTo: driverName}
			pv.Status.Phase = corev1.VolumeBound
			p := &fakeProvisioner{}
			s := run(t, newFakeAPI(pv), p, options...)
			s.advance(time.Hour)
			require.Empty(t, withReason(s.drainEvents(), "VolumeFailedDelete"), "it is in use")
			s.api.bindAndRelease(t) // its claim is gone
			s.advance(time.Hour)
			events := withReason(s.drainEvents(), "Warning VolumeFailedDelete")
			if options != nil {
				require.Empty(t, events)
				require.Len(t, p.deleted(), 1)
				return
			}
			require.Len(t, events, 1, "once")
			require.Contains(t, events[0], inTree)
			require.Empty(t, p.deleted())
		})
	}
}
