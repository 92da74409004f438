package snapshot_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
)

// TestUnknownReservedParametersAreRefused has classes with a typing error in the name of a Secret's parameter: without the Secret the driver
// would be called with no credentials, and the user would not learn why it fails.
func TestUnknownReservedParametersAreRefused(t *testing.T) {
	c := startGroups(t, api.Delete, labelled("data", corev1.ClaimBound), volume("data"))
	_, err := c.VolumeSnapshotClasses().Create(t.Context(), &api.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "typo", Annotations: map[string]string{snapshot.AnnDefaultClass: "true"}},
		Driver:     driverName, DeletionPolicy: api.Delete, Parameters: map[string]string{"csi.storage.k8s.io/snapshoter-secret-name": "s"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.snapshot(t, "s", ofClaim("data"))
	const message = `unknown parameter "csi.storage.k8s.io/snapshoter-secret-name": the prefix "csi.storage.k8s.io/" is reserved`
	c.wait(t, "s", failsWith(`VolumeSnapshotClass "typo": `+message))

	name := "typo"
	_, err = c.VolumeGroupSnapshotClasses().Create(t.Context(), &groupapi.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: driverName, DeletionPolicy: api.Delete,
		Parameters: map[string]string{"csi.storage.k8s.io/snapshoter-secret-name": "s"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.VolumeGroupSnapshots("ns").Create(t.Context(), &groupapi.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}, Spec: groupapi.VolumeGroupSnapshotSpec{ClassName: &name, Source: ofDB},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.waitGroup(t, groupFailsWith(`VolumeGroupSnapshotClass "typo": `+message))
	c.driver.set(func() { require.Empty(t, c.driver.taken); require.Empty(t, c.driver.groups) })

	c.removeGroup(t)
	c.remove(t, "s") // nothing was taken, so nothing keeps them
}

// TestParametersOfBothKindsOfSnapshots may be in one class: those of Secrets are not the driver's.
func TestParametersOfBothKindsOfSnapshots(t *testing.T) {
	class := map[string]string{"speed": "high", "csiSnapshotterSecretName": "old"}
	for _, purpose := range []string{"snapshotter", "snapshotter-list", "group-snapshotter", "group-snapshotter-get"} {
		class["csi.storage.k8s.io/"+purpose+"-secret-name"], class["csi.storage.k8s.io/"+purpose+"-secret-namespace"] = "s", "ns"
	}
	parameters, err := snapshot.DriverParameters(class)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"speed": "high", "csiSnapshotterSecretName": "old"}, parameters)
}
