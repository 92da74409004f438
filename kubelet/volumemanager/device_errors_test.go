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
			w := deviceWorld(t)
			w.noAttach()
			w.device("v")
			w.driver.FailNext(test.call, test.fault)
			done := w.mounting(pod("a", claimVolume("data", "v")))
			if test.fault.Hang {
				w.await("the call", func() bool { return slices.Contains(w.driver.Calls(), test.call+" v") })
			} else {
				require.Contains(t, w.nextEvent(), "csi driver fake.csi.test: "+test.call+" of volume \"pv-v\"")
			}
			w.driver.Reset()
			require.NoError(t, w.Unmount(t.Context(), "a"))
			require.ErrorIs(t, w.result(done), volumemanager.ErrTerminating)
			w.gone("a")
			w.allGone()
			require.Equal(t, test.undone, w.driver.Calls())

			// And where the Pod stays, the next attempt succeeds.
			if test.fault.Hang {
				return
			}
			w.driver.FailNext(test.call, test.fault)
			done = w.mounting(pod("b", claimVolume("data", "v")))
			require.Contains(t, w.nextEvent(), test.call)
			w.stepUntil(100*time.Millisecond, "mounted", func() bool { return len(w.Volumes("b")) == 1 })
			require.NoError(t, w.result(done))
			require.NoError(t, w.Unmount(t.Context(), "b"))
			w.allGone()
		})
	}
}

func TestVolumesOfDriversWithBadAnswers(t *testing.T) {
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
			w := deviceWorld(t)
			w.noAttach()
			w.device("v", test.change)
			w.device("ok")
			done := w.mounting(pod("a", claimVolume("data", "v"), emptyDir("other")))
			require.Contains(t, w.nextEvent(), test.err)
			require.NoError(t, w.Mount(t.Context(), pod("b", claimVolume("data", "ok"))), "others are not affected")
			require.NoError(t, w.Unmount(t.Context(), "a"))
			require.Error(t, w.result(done))
			require.NoError(t, w.Unmount(t.Context(), "b"))
			w.allGone()
		})
	}
	require.Error(t, errors.Join(csi.CheckDriverName("a/b")))
}
