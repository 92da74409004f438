package volumemanager_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/objects"
)

// hookedObjects are the objects of the fixture, which may do something before they are acquired.
type hookedObjects struct {
	*objects.Manager
	f *fixture
}

func (h hookedObjects) Acquire(pod *corev1.Pod) {
	if h.f.acquiring != nil {
		h.f.acquiring()
	}
	h.Manager.Acquire(pod)
}

// TestUpdateOfAPodThatIsUnmountedKeepsNoObject unmounts the volumes of a Pod after an update of the Pod has found them.
func TestUpdateOfAPodThatIsUnmountedKeepsNoObject(t *testing.T) {
	f := newFixture(t)
	f.create(secret("s", "v"))
	p := pod("a", vol("s", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}))
	require.NoError(t, f.Mount(t.Context(), p))
	require.NotZero(t, f.objects.Watched())
	f.acquiring = func() { require.NoError(t, f.Unmount(t.Context(), "a")) }
	f.PodUpdated(p)
	f.acquiring = nil
	f.waitObjectsReleased()
}
