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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/provision"
)

// The caller's informers may be running already, and go on when the controller has ended.
func TestInformersOfTheCaller(t *testing.T) {
	for _, early := range []bool{false, true} {
		runSynctest(fmt.Sprintf("started before=%v", early), t, func(t *testing.T) {
			class, claim := scheduled("one")
			api := newFakeAPI(class, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
			ctx, cancel := context.WithCancel(t.Context())
			factory := informers.NewSharedInformerFactory(api.client(nil), 0)
			defer factory.Shutdown()
			defer cancel()
			options := []option{
				provision.ClaimsInformer(factory.Core().V1().PersistentVolumeClaims().Informer()),
				provision.VolumesInformer(factory.Core().V1().PersistentVolumes().Informer()),
				provision.ClassesInformer(factory.Storage().V1().StorageClasses().Informer()),
				provision.NodesInformer(factory.Core().V1().Nodes().Informer()),
			}
			api.createClaim(t, claim)
			if early {
				factory.StartWithContext(ctx)
				synctest.Wait()
			}
			p := &fakeProvisioner{}
			s := run(t, api, p, options...)
			factory.StartWithContext(ctx)
			synctest.Wait()
			require.Len(t, api.volumes(t), 1)
			require.Equal(t, "one", p.calls[0].SelectedNode.Name)
			s.stop()
			api.createClaim(t, newClaim("later", "late"))
			synctest.Wait()
			require.Len(t, factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().ListKeys(), 2)
			require.Equal(t, 1, p.callCount())
		})
	}
}

// ResyncPeriod is also the period of informers of the caller, whatever their own is.
func TestInformersOfTheCallerResync(t *testing.T) {
	for _, period := range []time.Duration{time.Minute, 10 * time.Hour} {
		runSynctest("their own period="+period.String(), t, func(t *testing.T) {
			api := newFakeAPI(newClass("fast"))
			api.createClaim(t, newClaim("claim", "fast"))
			ctx, cancel := context.WithCancel(t.Context())
			factory := informers.NewSharedInformerFactory(api.client(nil), period)
			defer factory.Shutdown()
			defer cancel()
			p := &fakeProvisioner{}
			p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("disk full") })
			s := run(t, api, p, provision.FailedProvisionThreshold(1), provision.ResyncPeriod(time.Hour),
				provision.ClaimsInformer(factory.Core().V1().PersistentVolumeClaims().Informer()),
				provision.VolumesInformer(factory.Core().V1().PersistentVolumes().Informer()),
				provision.ClassesInformer(factory.Storage().V1().StorageClasses().Informer()))
			factory.StartWithContext(ctx)
			s.advance(50 * time.Minute)
			require.Equal(t, 2, p.callCount(), "given up, and no resync yet")
			s.advance(20 * time.Minute)
			require.Equal(t, 3, p.callCount(), "the resync allows one more")
		})
	}
}

// An informer of the caller may end before the controller has begun to watch it. That is an error only while the controller is to run.
func TestInformerThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		factory := informers.NewSharedInformerFactory(api.client(nil), 0)
		informer := factory.Core().V1().PersistentVolumeClaims().Informer()
		ended, end := context.WithCancel(t.Context())
		end()
		factory.StartWithContext(ended)
		factory.Shutdown()
		for ctx, fails := range map[context.Context]bool{ended: false, t.Context(): true} {
			ctrl, err := provision.New(api.client(nil), driverName, &fakeProvisioner{}, provision.LeaderElection(false),
				provision.EventRecorder(record.NewFakeRecorder(1)), provision.ClaimsInformer(informer))
			require.NoError(t, err)
			err = ctrl.RunContext(ctx)
			require.Equal(t, fails, err != nil, "%v", err)
		}
	})
}
