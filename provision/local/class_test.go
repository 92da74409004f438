package local_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/local"
)

func TestStorageClassIsTheDefaultAndWaits(t *testing.T) {
	class := local.StorageClass()
	require.Equal(t, "berth-local", class.Name)
	require.Equal(t, "berth.dev/local", class.Provisioner)
	require.Equal(t, "true", class.Annotations["storageclass.kubernetes.io/is-default-class"])
	require.Equal(t, storagev1.VolumeBindingWaitForFirstConsumer, *class.VolumeBindingMode)
	require.Equal(t, corev1.PersistentVolumeReclaimDelete, *class.ReclaimPolicy)
	require.NotSame(t, class, local.StorageClass())
}

func TestIntentFinalizerIsTheNodesOwn(t *testing.T) {
	require.NotEqual(t, local.IntentFinalizer("one"), local.IntentFinalizer("two"))
	p, _ := newProvisioner(t, t.TempDir())
	_, err := provision.New(fake.NewClientset(), local.ProvisionerName, p,
		provision.IntentFinalizer(local.IntentFinalizer("a.long.name.of.a.node.in.some.region.of.some.cloud.example.com")))
	require.NoError(t, err)
}
