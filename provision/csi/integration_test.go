package csi_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

// The tests in this file need a real API server with a controller manager: the path of an administrator's kubeconfig
// in BERTH_TEST_KUBECONFIG. They work in a namespace and a class of their own. What provisions has the identity of
// BERTH_TEST_PROVISION_KUBECONFIG, if that is given. test/integration runs them with both.
func realClient(t *testing.T) (client, own kubernetes.Interface, class string) {
	t.Helper()
	path := os.Getenv("BERTH_TEST_KUBECONFIG")
	if path == "" {
		t.Skip("BERTH_TEST_KUBECONFIG is not set")
	}
	client = connect(t, path)
	own = connect(t, cmp.Or(os.Getenv("BERTH_TEST_PROVISION_KUBECONFIG"), path))
	class = "csi-" + utilrand.String(6)
	ctx := context.WithoutCancel(t.Context())
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: class}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: class + ".example.com",
		// No node of the cluster has the driver, and otherwise claims would wait for one.
		AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: csidriver.TopologyKey, Values: []string{"node-1"}}}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.StorageV1().StorageClasses().Delete(ctx, class, metav1.DeleteOptions{})
		_ = client.CoordinationV1().Leases("kube-system").Delete(ctx, class+".example.com", metav1.DeleteOptions{})
		_ = client.CoreV1().Namespaces().Delete(ctx, class, metav1.DeleteOptions{})
	})
	return client, own, class
}

func connect(t *testing.T, path string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	config.QPS = -1
	// A client that has its certificate from a file watches that file for ever.
	require.NoError(t, rest.LoadTLSFiles(config))
	config.CertFile, config.KeyFile = "", ""
	var mu sync.Mutex
	var connections []net.Conn
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			connections = append(connections, conn)
		}
		return conn, err
	}
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range connections {
			_ = conn.Close() // a watch may still use it
		}
	})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// claims makes claims of the class.
func claims(t *testing.T, client kubernetes.Interface, class string, count int) {
	t.Helper()
	for i := range count {
		_, err := client.CoreV1().PersistentVolumeClaims(class).Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("claim-", i)},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

// until watches volumes until those of the class are as done wants them, and returns their handles.
func until(
	t *testing.T, client kubernetes.Interface, class string, done func([]corev1.PersistentVolume) bool,
) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for {
		list, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		var own []corev1.PersistentVolume
		var handles []string
		for _, pv := range list.Items {
			if pv.Spec.StorageClassName == class {
				own = append(own, pv)
				handles = append(handles, pv.Spec.CSI.VolumeHandle)
			}
		}
		if done(own) {
			return handles
		}
		changes, err := client.CoreV1().PersistentVolumes().Watch(ctx,
			metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		require.NoError(t, err)
		<-changes.ResultChan()
		changes.Stop()
		require.NoError(t, ctx.Err(), "volumes: %d", len(own))
	}
}

func allBound(count int) func([]corev1.PersistentVolume) bool {
	return func(volumes []corev1.PersistentVolume) bool {
		for _, pv := range volumes {
			if pv.Status.Phase != corev1.VolumeBound {
				return false
			}
		}
		return len(volumes) == count
	}
}

// newController runs the controller with the provisioner until the test's end. What fails is tried again after first, at first.
func newController(t *testing.T, client kubernetes.Interface, class string, p *csi.Provisioner, first time.Duration) {
	t.Helper()
	ctrl, err := provision.New(client, class+".example.com", p,
		provision.LeaderElectionNamespace("kube-system"), provision.RateLimiter(
			workqueue.NewItemExponentialFailureRateLimiter(first, max(first, time.Second))), //nolint:staticcheck // its type
		provision.FailedProvisionThreshold(0), provision.FailedDeleteThreshold(0), provision.Threadiness(8))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ctrl.RunContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

func TestRealClaimsByARealDriver(t *testing.T) {
	client, own, class := realClient(t)
	config, driver := loopDriver(t, csidriver.Config{Name: class + ".example.com"})
	p := started(t, csi.Deps{Client: own}, csi.Config{Name: class + ".example.com", Socket: config.Endpoint})
	newController(t, own, class, p, 10*time.Millisecond)
	const count = 50
	began := time.Now()
	claims(t, client, class, count)
	handles := until(t, client, class, allBound(count))
	t.Logf("%d claims bound in %v", count, time.Since(began))
	list, err := driver.ListVolumes(t.Context(), &csiapi.ListVolumesRequest{})
	require.NoError(t, err)
	var have []string
	for _, entry := range list.GetEntries() {
		have = append(have, entry.GetVolume().GetVolumeId())
	}
	require.ElementsMatch(t, handles, have)
	require.NoError(t, client.CoreV1().PersistentVolumeClaims(class).DeleteCollection(t.Context(),
		metav1.DeleteOptions{}, metav1.ListOptions{}))
	until(t, client, class, allBound(0))
	list, err = driver.ListVolumes(t.Context(), &csiapi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetEntries())
}

// flakyDriver keeps volumes, and errs, hangs or answers late, at random, whatever it has done by then.
type flakyDriver struct {
	mu      sync.Mutex
	dice    *rand.Rand
	volumes map[string]bool
}

func (m *flakyDriver) nextFault(ctx context.Context, act func()) error {
	m.mu.Lock()
	roll := m.dice.IntN(10)
	if roll < 7 {
		act()
	}
	m.mu.Unlock()
	switch roll {
	case 0, 1: // hangs, and succeeds after the caller has gone
		<-ctx.Done()
		m.mu.Lock()
		act()
		m.mu.Unlock()
		return ctx.Err()
	case 2, 3:
		<-ctx.Done() // has done it, but is late
		return ctx.Err()
	case 7:
		return status.Error(codes.Internal, "refused")
	case 8:
		return status.Error(codes.Aborted, "under way")
	case 9:
		return status.Error(codes.ResourceExhausted, "no capacity")
	}
	return nil
}

func TestRealClaimsWithAFlakyDriver(t *testing.T) {
	client, own, class := realClient(t)
	backend := &flakyDriver{dice: rand.New(rand.NewPCG(1, 2)), volumes: map[string]bool{}}
	f := newFakeDriver()
	f.name = class + ".example.com"
	f.create = func(ctx context.Context, req *csiapi.CreateVolumeRequest) (*csiapi.Volume, error) {
		id := "id-of-" + req.GetName()
		err := backend.nextFault(ctx, func() { backend.volumes[id] = true })
		if code := status.Code(err); code == codes.Internal || code == codes.ResourceExhausted {
			backend.mu.Lock() // it keeps CSI's word: a final error leaves no volume
			delete(backend.volumes, id)
			backend.mu.Unlock()
		}
		return &csiapi.Volume{VolumeId: id}, err
	}
	f.remove = func(req *csiapi.DeleteVolumeRequest) error {
		backend.mu.Lock()
		defer backend.mu.Unlock()
		if backend.dice.IntN(3) == 0 {
			return status.Error(codes.Aborted, "under way")
		}
		delete(backend.volumes, req.GetVolumeId())
		return nil
	}
	socket := socketPath(t)
	f.serve(t, socket)
	p := started(t, csi.Deps{Client: own}, csi.Config{Name: f.name, Socket: socket, Timeout: 200 * time.Millisecond})
	newController(t, own, class, p, 10*time.Millisecond)
	const count = 20
	claims(t, client, class, count)
	handles := until(t, client, class, allBound(count))
	backend.mu.Lock()
	var have []string
	for id := range backend.volumes {
		have = append(have, id)
	}
	backend.mu.Unlock()
	require.ElementsMatch(t, handles, have)
	require.NoError(t, client.CoreV1().PersistentVolumeClaims(class).DeleteCollection(t.Context(),
		metav1.DeleteOptions{}, metav1.ListOptions{}))
	until(t, client, class, allBound(0))
	backend.mu.Lock()
	defer backend.mu.Unlock()
	require.Empty(t, backend.volumes)
}
