package provision_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

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
