package provision_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/berth-dev/berth/internal/freeport"
	"github.com/berth-dev/berth/provision"
)

// The caller's informers may be running already, and go on when the controller has ended.
func TestInformersOfTheCaller(t *testing.T) {
	for _, early := range []bool{false, true} {
		runSynctest(fmt.Sprintf("started before=%v", early), t, func(t *testing.T) {
			class, claim := scheduled("one")
			w := newFakeAPI(class, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
			ctx, cancel := context.WithCancel(t.Context())
			factory := informers.NewSharedInformerFactory(w.client(nil), 0)
			defer factory.Shutdown()
			defer cancel()
			options := []option{
				provision.ClaimsInformer(factory.Core().V1().PersistentVolumeClaims().Informer()),
				provision.VolumesInformer(factory.Core().V1().PersistentVolumes().Informer()),
				provision.ClassesInformer(factory.Storage().V1().StorageClasses().Informer()),
				provision.NodesInformer(factory.Core().V1().Nodes().Informer()),
			}
			w.createClaim(t, claim)
			if early {
				factory.StartWithContext(ctx)
				synctest.Wait()
			}
			p := &fakeProvisioner{}
			s := run(t, w, p, options...)
			factory.StartWithContext(ctx)
			synctest.Wait()
			require.Len(t, w.volumes(t), 1)
			require.Equal(t, "one", p.calls[0].SelectedNode.Name)
			s.stop()
			w.createClaim(t, newClaim("later", "late"))
			synctest.Wait()
			require.Len(t, factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().ListKeys(), 2)
			require.Equal(t, 1, p.callCount())
		})
	}
}

// A claim deleted and created again under its name is another claim.
func TestClaimCreatedAgainUnderItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(newClass("fast")), &fakeProvisioner{})
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.api.deleteClaim(t, "claim")
		synctest.Wait()
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 2)
		s.api.bindAndRelease(t)
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 1)
		require.Equal(t, corev1.ClaimBound, s.api.claim(t, "claim").Status.Phase)
	})
}

// An intent that was written by a process that died is resolved, whatever became of the claim meanwhile.
func TestIntentOfAnEarlierProcess(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"waiting": func(*corev1.PersistentVolumeClaim) {},
		"deleted": func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
		"bound elsewhere": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "another", corev1.ClaimBound
		},
		"not ours any more": func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil },
	} {
		runSynctest(name, t, func(t *testing.T) {
			claim := withUID(newClaim("claim", "fast"), "u")
			claim.Finalizers = []string{"a.b/c", "example.com/intent"}
			change(claim)
			p := &fakeProvisioner{}
			s := run(t, newFakeAPI(newClass("fast"), claim), p, provision.IntentFinalizer("example.com/intent"))
			require.Equal(t, 1, p.callCount(), "a volume may exist: asking for it again is how it is found")
			require.Len(t, s.api.volumes(t), 1)
			s.api.bindAndRelease(t)
			synctest.Wait()
			require.Equal(t, []string{"a.b/c"}, s.api.claim(t, "claim").Finalizers)
		})
	}
}

func TestWithoutIntentNoClaimIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(newClass("fast")), &fakeProvisioner{}, provision.ClaimIntent(false))
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 1)
		require.Zero(t, s.api.writeCount("patch persistentvolumeclaims"))
	})
}

func TestMetricsPage(t *testing.T) {
	port, err := freeport.Loopback()
	require.NoError(t, err)
	for range 2 { // the page and its metrics belong to the controller, not to the process
		c, err := provision.New(newFakeAPI().client(nil), driverName, &fakeProvisioner{}, provision.LeaderElection(false),
			provision.MetricsAddress("127.0.0.1"), provision.MetricsPort(int32(port)), provision.MetricsPath("/here"))
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.RunContext(ctx) }()
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/here", port))
			if assert.NoError(t, err) {
				body, err := io.ReadAll(response.Body)
				assert.NoError(t, err)
				assert.NoError(t, response.Body.Close())
				assert.Contains(t, string(body), "controller_persistentvolumeclaim_provision_waiting 0")
			}
		}, time.Minute, 10*time.Millisecond)
		http.DefaultClient.CloseIdleConnections()
		stop()
		require.NoError(t, <-done)
	}
}
