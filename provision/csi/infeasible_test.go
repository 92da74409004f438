package csi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

// newUnprovisionedClaim is a claim that waits for the driver.
func newUnprovisionedClaim(name string) *corev1.PersistentVolumeClaim {
	claim := options().PVC
	claim.Name, claim.UID, claim.Spec.StorageClassName = name, types.UID("uid-"+name), ptr.To("fast")
	claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": driverName}
	return claim
}

// A driver that finds an argument wrong is asked once and then left alone for five minutes; a changed claim is sent at
// once. After each step of the clock another claim's volume shows that the controller is at work.
func TestInvalidArgumentIsRetriedSlowly(t *testing.T) {
	const wrong = "wrong"
	f := newFakeDriver()
	asked := make(chan string, 10)
	f.create = func(_ context.Context, req *csiapi.CreateVolumeRequest) (*csiapi.Volume, error) {
		asked <- req.GetName()
		if req.GetName() == "pvc-uid-"+wrong {
			return nil, status.Error(codes.InvalidArgument, "no such tier")
		}
		return &csiapi.Volume{VolumeId: "id", CapacityBytes: req.GetCapacityRange().GetRequiredBytes()}, nil
	}
	client := cluster(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "class"}, Provisioner: driverName})
	config := csi.Config{Name: driverName, Socket: socketPath(t)}
	f.serve(t, config.Socket)
	p := started(t, csi.Deps{Client: client}, config)
	clock := clocktesting.NewFakeClock(time.Now())
	events := record.NewFakeRecorder(100)
	ctrl, err := provision.New(client, driverName, p, provision.LeaderElection(false), provision.Clock(clock),
		provision.EventRecorder(events))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ctrl.RunContext(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-done)
	}()

	volumes := volumesSeen(t, client)
	createClaim(t, client, wrong)
	require.Equal(t, "pvc-uid-"+wrong, <-asked)
	texts := ""
	for !strings.Contains(texts, "no such tier") { // the backoff begins at the time of the event
		texts += <-events.Events + "\n"
	}
	const step = 50 * time.Second
	var passed time.Duration
	for again := false; !again; passed += step {
		clock.Step(step)
		another := fmt.Sprint("after-", passed)
		createClaim(t, client, another)
		for name := ""; name != "pvc-uid-"+another; {
			if name = <-asked; name == "pvc-uid-"+wrong {
				again = true
			}
		}
		require.Equal(t, "pvc-uid-"+another, <-volumes)
	}
	require.GreaterOrEqual(t, passed, 5*time.Minute)
	require.Less(t, passed, 5*time.Minute+3*step, "the claim that came before the last may have been quicker than it")

	claims := client.CoreV1().PersistentVolumeClaims("ns")
	claim, err := claims.Get(t.Context(), wrong, metav1.GetOptions{})
	require.NoError(t, err)
	claim.Labels = map[string]string{"tier": "gold"}
	_, err = claims.Update(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "pvc-uid-"+wrong, <-asked, "it changed")
	require.Contains(t, texts, "no such tier; the request is infeasible")
}

func createClaim(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	_, err := client.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), newUnprovisionedClaim(name), metav1.CreateOptions{})
	require.NoError(t, err)
}

// volumesSeen sends the names of volumes as they are created.
func volumesSeen(t *testing.T, client kubernetes.Interface) <-chan string {
	t.Helper()
	watcher, err := client.CoreV1().PersistentVolumes().Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	t.Cleanup(watcher.Stop)
	names := make(chan string, 100)
	go func() {
		for event := range watcher.ResultChan() {
			if pv, ok := event.Object.(*corev1.PersistentVolume); ok && event.Type == watch.Added {
				names <- pv.Name
			}
		}
	}()
	return names
}
