package modify_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/provision/claimwork"
	"github.com/berth-dev/berth/provision/modify"
)

const (
	inProgress = corev1.PersistentVolumeClaimModifyVolumeInProgress
	pending    = corev1.PersistentVolumeClaimModifyVolumePending
	infeasible = corev1.PersistentVolumeClaimModifyVolumeInfeasible

	modifying   = corev1.PersistentVolumeClaimVolumeModifyingVolume
	modifyError = corev1.PersistentVolumeClaimVolumeModifyVolumeError
)

func failing(code codes.Code) func(map[string]string) error {
	return func(map[string]string) error { return status.Error(code, "the driver's reason") }
}

func TestClassesAreApplied(t *testing.T) {
	run(t, func(f *fixture) {
		require.Empty(t, f.called(), "a claim without a class costs no call")
		f.name("gold")
		require.Equal(t, []string{"gold"}, f.called())
		f.requireClass("gold")
		require.Contains(t, <-f.recorder.Events, "VolumeModify ")
		require.Contains(t, <-f.recorder.Events, "VolumeModifySuccessful")
		f.name("silver")
		require.Equal(t, []string{"silver"}, f.called())
		f.requireClass("silver")
		f.name("")
		require.Empty(t, f.called(), "no class means that attributes stay as they are")
	})
}

func TestFinalErrorsAreRetriedAndMayBeGivenUp(t *testing.T) {
	run(t, func(f *fixture) {
		f.failWith(failing(codes.Internal))
		f.name("gold")
		f.requireStatus(inProgress, "gold", modifyError, "the driver's reason")
		time.Sleep(3500 * time.Millisecond) // retries after 1 and 2 s
		synctest.Wait()
		require.Equal(t, []string{"gold", "gold", "gold"}, f.called())
		f.name("")
		f.requireClass("")
		time.Sleep(time.Hour)
		require.Empty(t, f.called())

		f.name("gold")
		f.failWith(func(map[string]string) error { return nil })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		f.requireClass("gold")
	})
}

func TestInfeasibleClassesAreRetriedSlowly(t *testing.T) {
	run(t, func(f *fixture) {
		f.failWith(func(parameters map[string]string) error {
			if parameters["class"] == "gold" {
				return status.Error(codes.InvalidArgument, "too much gold")
			}
			return nil
		})
		f.name("gold")
		f.requireStatus(infeasible, "gold", modifyError, "too much gold")
		time.Sleep(4 * time.Minute)
		require.Equal(t, []string{"gold"}, f.called())
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"gold"}, f.called())
		f.name("silver")
		require.Equal(t, []string{"silver"}, f.called(), "another class is tried at once")
		f.requireClass("silver")
		f.name("foreign")
		f.requireStatus(infeasible, "foreign", modifyError, "other.example.com")
		f.name("silver")
		f.requireClass("silver")
		require.Empty(t, f.called(), "nothing was sent, so nothing is to be undone")
	})
}

func TestDriversWithoutTheCapabilityAreNotCalled(t *testing.T) {
	run(t, func(f *fixture) {
		f.supported = false
		f.name("gold")
		require.Empty(t, f.called())
		f.requireStatus(infeasible, "gold", modifyError, "does not modify volumes")
		f.name("")
		f.requireClass("")
	})
}

func TestClassesMayBeCreatedLater(t *testing.T) {
	run(t, func(f *fixture) {
		f.name("platinum")
		f.requireStatus(pending, "platinum", modifyError, "does not exist")
		f.createClass("platinum", driverName)
		synctest.Wait()
		f.requireClass("platinum")
		require.Equal(t, []string{"platinum"}, f.called())
	})
}

func TestUnknownOutcomes(t *testing.T) {
	run(t, func(f *fixture) {
		f.name("silver")
		f.called()
		f.failWith(failing(codes.DeadlineExceeded))
		f.name("gold")
		f.requireStatus(inProgress, "gold", modifying, "the driver's reason")
		// A class that does not exist changes nothing of what is unknown.
		f.name("absent")
		f.requireStatus(inProgress, "gold", modifying, "does not exist")
		f.failWith(func(map[string]string) error { return nil })
		f.called()
		f.name("silver")
		require.Equal(t, []string{"silver"}, f.called(), "the volume may have gold")
		f.requireClass("silver")
	})
}

func TestAVolumeWithoutAClassGetsAFinalResult(t *testing.T) {
	run(t, func(f *fixture) {
		f.failWith(failing(codes.Unavailable))
		f.name("gold")
		f.name("")
		f.requireStatus(inProgress, "gold", modifying, "the driver's reason")
		f.failWith(failing(codes.Internal))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		f.requireClass("")
	})
}

func TestTheNextProcessContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.failWith(failing(codes.DeadlineExceeded))
		stop := f.start()
		f.name("gold")
		stop()
		f.failWith(func(map[string]string) error { return nil })
		f.called()
		stop = f.start()
		require.Equal(t, []string{"gold"}, f.called())
		f.requireClass("gold")
		stop()
	})
}

func TestDependenciesAreNamed(t *testing.T) {
	for want, deps := range map[string]modify.Deps{
		"Deps.Client is required": {Driver: &fixture{}},
		"Deps.Driver is required": {Deps: claimwork.Deps{Client: newClientset()}},
	} {
		_, err := modify.New(deps, modify.Config{DriverName: driverName})
		require.EqualError(t, err, "modify: "+want)
	}
	_, err := modify.New(modify.Deps{Deps: claimwork.Deps{Client: newClientset()}, Driver: &fixture{}}, modify.Config{})
	require.EqualError(t, err, "modify: Config.DriverName is required")
}
