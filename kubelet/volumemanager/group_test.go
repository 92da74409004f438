package volumemanager_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// TestFilesThatCannotBeGivenToTheGroupAreReported mounts a volume that no group can be set in, as with Kubernetes' kubelet.
func TestFilesThatCannotBeGivenToTheGroupAreReported(t *testing.T) {
	f := newFixture(t)
	claim, pv, dir := f.newLocalClaim("c")
	pv.Spec.MountOptions = []string{"ro"}
	f.create(claim, pv, newNode())
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o644))
	p := pod("a", claimVolume("data", "c"))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To[int64](1234)}
	require.NoError(t, f.result(f.startMount(p)))
	event := f.nextEvent()
	require.Contains(t, event, `Warning VolumePermissionChangeRefused Volume "data" has 2 files that cannot be given to the group 1234, the first: "file"`)
	require.Contains(t, event, "read-only file system")
	require.NoError(t, f.Unmount(t.Context(), "a"))
}

func TestGroupThatASharedVolumeKeepsIsReported(t *testing.T) {
	f := newFixture(t)
	claim, pv, _ := f.newLocalClaim("c")
	f.create(claim, pv, newNode())
	for uid, gid := range map[types.UID]int64{"a": 1001, "b": 1002} {
		p := pod(uid, claimVolume("data", "c"))
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &gid}
		require.NoError(t, f.Mount(t.Context(), p))
	}
	require.Regexp(t, `Warning AlreadyMountedVolume The requested fsGroup is 100[12], but volume "data" keeps the group 100[12], because other pods`,
		f.nextEvent())
	require.Empty(t, f.events.Events)
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.NoError(t, f.Unmount(t.Context(), "b"))
}
