package volumemanager_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume/csi"
	csifake "github.com/berth-dev/berth/volume/csi/fake"
)

func TestErrorsOfDrivers(t *testing.T) {
	final, open := csifake.Fault{Code: codes.Internal}, csifake.Fault{Code: codes.DeadlineExceeded, TakesEffect: true}
	for name, test := range map[string]struct {
		call   string
		fault  csifake.Fault
		undone []string // calls that the Pod's end must bring, if it ends right after the failure
	}{
		"stage, final":     {"NodeStageVolume", final, nil},
		"stage, open":      {"NodeStageVolume", open, []string{"NodeUnstageVolume v"}},
		"publish, final":   {"NodePublishVolume", final, []string{"NodeUnstageVolume v"}},
		"publish, open":    {"NodePublishVolume", open, []string{"NodeUnpublishVolume v", "NodeUnstageVolume v"}},
		"publish, lost":    {"NodePublishVolume", csifake.Fault{Code: codes.Internal, TakesEffect: true}, []string{"NodeUnpublishVolume v", "NodeUnstageVolume v"}},
		"stage, hangs":     {"NodeStageVolume", csifake.Fault{Hang: true, TakesEffect: true}, []string{"NodeUnstageVolume v"}},
		"publish, hangs":   {"NodePublishVolume", csifake.Fault{Hang: true}, []string{"NodeUnpublishVolume v", "NodeUnstageVolume v"}},
		"stage, too large": {"NodeStageVolume", csifake.Fault{Code: codes.ResourceExhausted, TakesEffect: true}, []string{"NodeUnstageVolume v"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newDriverFixture(t)
			f.createUnattachedDriver()
			f.createDriverClaim("v")
			f.driver.FailNext(test.call, test.fault)
			done := f.startMount(pod("a", claimVolume("data", "v")))
			if test.fault.Hang {
				f.eventually("the call", func() bool { return slices.Contains(f.driver.Calls(), test.call+" v") })
			} else {
				require.Contains(t, f.nextEvent(), "csi driver fake.csi.test: "+test.call+" of volume \"pv-v\"")
			}
			f.driver.Reset()
			require.NoError(t, f.Unmount(t.Context(), "a"))
			require.ErrorIs(t, f.result(done), volumemanager.ErrTerminating)
			f.requireUnmounted("a")
			f.requireUnstaged()
			require.Equal(t, test.undone, f.driver.Calls())

			// And where the Pod stays, the next attempt succeeds.
			if test.fault.Hang {
				return
			}
			f.driver.FailNext(test.call, test.fault)
			done = f.startMount(pod("b", claimVolume("data", "v")))
			require.Contains(t, f.nextEvent(), test.call)
			f.stepUntil(100*time.Millisecond, "mounted", func() bool { return len(f.Volumes("b")) == 1 })
			require.NoError(t, f.result(done))
			require.NoError(t, f.Unmount(t.Context(), "b"))
			f.requireUnstaged()
		})
	}
}

func TestVolumesWithBadSources(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.PersistentVolume)
		err    string
	}{
		"name leads out": {func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "../../x" }, `use csi driver "../../x"`},
		"no handle":      {func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "" }, "volumeHandle is empty"},
		"missing secret": {func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "no"}
		}, "read secret ns/no"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newDriverFixture(t)
			f.createUnattachedDriver()
			f.createDriverClaim("v", test.change)
			f.createDriverClaim("ok")
			done := f.startMount(pod("a", claimVolume("data", "v"), emptyDir("other")))
			require.Contains(t, f.nextEvent(), test.err)
			require.NoError(t, f.Mount(t.Context(), pod("b", claimVolume("data", "ok"))), "others are not affected")
			require.NoError(t, f.Unmount(t.Context(), "a"))
			require.Error(t, f.result(done))
			require.NoError(t, f.Unmount(t.Context(), "b"))
			f.requireUnstaged()
		})
	}
	require.Error(t, errors.Join(csi.CheckDriverName("a/b")))
}
