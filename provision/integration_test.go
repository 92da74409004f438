package provision_test

import (
	"cmp"
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/provision"
)

// The tests in this file need a real API server with a controller manager: the path of an administrator's
// kubeconfig in BERTH_TEST_KUBECONFIG. They work in a namespace and a class of their own. The controller has the
// identity of BERTH_TEST_PROVISION_KUBECONFIG, if that is given. test/integration runs them with both.
const (
	envKubeconfig = "BERTH_TEST_KUBECONFIG"
	envOwn        = "BERTH_TEST_PROVISION_KUBECONFIG"
	envBackend    = "BERTH_TEST_BACKEND"
	envDriver     = "BERTH_TEST_DRIVER"
)

func realClient(t *testing.T) kubernetes.Interface {
	t.Helper()
	path := os.Getenv(envKubeconfig)
	if path == "" {
		t.Skipf("%s is not set", envKubeconfig)
	}
	return connect(t, path)
}

// ownClient has the controller's identity.
func ownClient(t *testing.T, change ...func(*rest.Config)) kubernetes.Interface {
	t.Helper()
	return connect(t, cmp.Or(os.Getenv(envOwn), os.Getenv(envKubeconfig)), change...)
}

func connect(t *testing.T, path string, change ...func(*rest.Config)) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	config.QPS = -1
	for _, f := range change {
		f(config)
	}
	var mu sync.Mutex
	var open []net.Conn
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			open = append(open, conn)
		}
		return conn, err
	}
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range open {
			conn.Close()
		}
	})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// newTestClass makes a class and a namespace and returns their common name.
func newTestClass(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	name := "provision-" + utilrand.String(6)
	ctx := context.WithoutCancel(t.Context())
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/" + name}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.StorageV1().StorageClasses().Delete(ctx, name, metav1.DeleteOptions{})
		_ = client.CoordinationV1().Leases("kube-system").Delete(ctx, "example.com-"+name, metav1.DeleteOptions{})
		_ = client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	})
	return name
}

func realClaim(t *testing.T, client kubernetes.Interface, class, name string) {
	t.Helper()
	_, err := client.CoreV1().PersistentVolumeClaims(class).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// untilClaims watches the claims until done says so of how many there are and how many are bound.
func untilClaims(t *testing.T, client kubernetes.Interface, class string, done func(all, bound int) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		list, err := client.CoreV1().PersistentVolumeClaims(class).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		bound := map[string]bool{}
		for _, claim := range list.Items {
			bound[claim.Name] = claim.Status.Phase == corev1.ClaimBound
		}
		changes, err := client.CoreV1().PersistentVolumeClaims(class).Watch(ctx,
			metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		require.NoError(t, err)
		for open := true; open; {
			count := 0
			for _, is := range bound {
				if is {
					count++
				}
			}
			if done(len(bound), count) {
				changes.Stop()
				return
			}
			var event watch.Event
			if event, open = <-changes.ResultChan(); open {
				claim, is := event.Object.(*corev1.PersistentVolumeClaim)
				switch {
				case !is:
					open = false
				case event.Type == watch.Deleted:
					delete(bound, claim.Name)
				default:
					bound[claim.Name] = claim.Status.Phase == corev1.ClaimBound
				}
			}
		}
		require.NoError(t, ctx.Err(), "claims: %v", bound)
	}
}

func realVolumes(t *testing.T, client kubernetes.Interface, class string) []string {
	t.Helper()
	list, err := client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, pv := range list.Items {
		if pv.Spec.StorageClassName == class {
			names = append(names, pv.Name)
		}
	}
	slices.Sort(names)
	return names
}

// untilVolumes watches until so many volumes of the class are left.
func untilVolumes(t *testing.T, client kubernetes.Interface, class string, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	changes, err := client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	defer changes.Stop()
	have := map[string]bool{}
	for _, name := range realVolumes(t, client, class) {
		have[name] = true
	}
	for len(have) != count {
		event, open := <-changes.ResultChan()
		require.True(t, open, "volumes: %v", have)
		switch pv, is := event.Object.(*corev1.PersistentVolume); {
		case !is || pv.Spec.StorageClassName != class:
		case event.Type == watch.Deleted:
			delete(have, pv.Name)
		default:
			have[pv.Name] = true
		}
	}
}

// dirProvisioner is a backend that outlives the process, for TestRealKill.
type dirProvisioner struct{ root string }

func randomSleep() { time.Sleep(randomPause(30)) }

func randomPause(milliseconds int) time.Duration {
	return time.Duration(mathrand.IntN(milliseconds)) * time.Millisecond
}

func (d dirProvisioner) Provision(o provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	randomSleep()
	if err := os.MkdirAll(filepath.Join(d.root, o.PVName), 0o700); err != nil {
		return nil, err
	}
	randomSleep()
	return newVolume(o), nil
}

func (d dirProvisioner) Delete(pv *corev1.PersistentVolume) error {
	randomSleep()
	defer randomSleep()
	return os.RemoveAll(filepath.Join(d.root, pv.Name))
}

// TestHelperProvisioner is the process that TestRealKill kills.
func TestHelperProvisioner(t *testing.T) {
	root := os.Getenv(envBackend)
	if root == "" {
		t.Skip("only a helper of TestRealKill")
	}
	ctrl, err := provision.New(ownClient(t), os.Getenv(envDriver), dirProvisioner{root}, provision.LeaderElection(false))
	require.NoError(t, err)
	require.NoError(t, ctrl.RunContext(t.Context()))
}

// TestRealKill kills a real process again and again with SIGKILL while claims come and go.
func TestRealKill(t *testing.T) {
	client := realClient(t)
	class, backend := newTestClass(t, client), t.TempDir()
	var helper *exec.Cmd
	start := func() {
		helper = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperProvisioner$")
		helper.Env = append(os.Environ(), envBackend+"="+backend, envDriver+"=example.com/"+class)
		require.NoError(t, helper.Start())
	}
	kill := func() {
		require.NoError(t, helper.Process.Signal(syscall.SIGKILL))
		_ = helper.Wait() // killed
	}
	start()
	const rounds, each = 25, 4
	deleted := 0
	for round := range rounds {
		for i := range each {
			realClaim(t, client, class, fmt.Sprintf("claim-%d-%d", round, i))
		}
		time.Sleep(200*time.Millisecond + randomPause(400)) // when it is killed is the test's input
		kill()
		for i := range each {
			if mathrand.IntN(2) == 0 {
				err := client.CoreV1().PersistentVolumeClaims(class).Delete(t.Context(),
					fmt.Sprintf("claim-%d-%d", round, i), metav1.DeleteOptions{})
				require.True(t, err == nil || apierrors.IsNotFound(err), err)
				deleted++
			}
		}
		start()
	}
	left := rounds*each - deleted
	untilClaims(t, client, class, func(all, bound int) bool { return all == left && bound == left })
	untilVolumes(t, client, class, left)
	kill()
	entries, err := os.ReadDir(backend)
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	require.Equal(t, realVolumes(t, client, class), names)
	t.Logf("%d kills, %d claims, %d of them deleted: %s", rounds, rounds*each, deleted, strings.Join(names[:2], " "))

	start()
	require.NoError(t, client.CoreV1().PersistentVolumeClaims(class).DeleteCollection(t.Context(),
		metav1.DeleteOptions{}, metav1.ListOptions{}))
	untilVolumes(t, client, class, 0)
	entries, err = os.ReadDir(backend)
	require.NoError(t, err)
	require.Empty(t, entries)
	kill()
}
