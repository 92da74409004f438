package local_test

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/local"
)

// TestRealClaim follows one claim of the class through a real API server: made, bound, deleted. It needs an
// administrator's kubeconfig in BERTH_TEST_KUBECONFIG; it plays the scheduler's part itself. The controller has the
// identity of BERTH_TEST_PROVISION_KUBECONFIG, if that is given. test/integration runs it with both.
func TestRealClaim(t *testing.T) {
	kubeconfig := os.Getenv("BERTH_TEST_KUBECONFIG")
	if kubeconfig == "" {
		t.Skip("BERTH_TEST_KUBECONFIG is not set")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	config, err = clientcmd.BuildConfigFromFlags("", cmp.Or(os.Getenv("BERTH_TEST_PROVISION_KUBECONFIG"), kubeconfig))
	require.NoError(t, err)
	own, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	node := "local-" + utilrand.String(6)
	_, err = client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: node, Labels: map[string]string{corev1.LabelHostname: node}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	defer func() {
		_ = client.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), node, metav1.DeleteOptions{})
	}()
	_, err = client.StorageV1().StorageClasses().Create(ctx, local.StorageClass(), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
	root := t.TempDir()
	p, err := local.New(local.Deps{}, local.Config{Root: root, NodeName: node})
	require.NoError(t, err)
	ctrl, err := provision.New(own, local.ProvisionerName, p, provision.LeaderElection(false),
		provision.IntentFinalizer(local.IntentFinalizer(node)))
	require.NoError(t, err)
	runCtx, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- ctrl.RunContext(runCtx) }()

	claims := client.CoreV1().PersistentVolumeClaims("default")
	changes, err := claims.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	require.NoError(t, err)
	class := local.ClassName
	began := time.Now()
	claim, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{
			"volume.kubernetes.io/selected-node": node}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Mi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for claim.Status.Phase != corev1.ClaimBound {
		event, open := <-changes.ResultChan()
		require.True(t, open, "claim never bound")
		claim = event.Object.(*corev1.PersistentVolumeClaim)
	}
	t.Logf("bound after %v", time.Since(began))
	dir := filepath.Join(root, claim.Spec.VolumeName)
	require.DirExists(t, dir)

	volumes, err := client.CoreV1().PersistentVolumes().Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + claim.Spec.VolumeName})
	require.NoError(t, err)
	began = time.Now()
	require.NoError(t, claims.Delete(ctx, node, metav1.DeleteOptions{}))
	for gone := false; !gone; {
		event, open := <-volumes.ResultChan()
		require.True(t, open, "volume never deleted")
		gone = event.Type == "DELETED"
	}
	t.Logf("removed after %v", time.Since(began))
	require.NoDirExists(t, dir)
	changes.Stop()
	volumes.Stop()
	events, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + node + ",reason=" + local.ReasonSizeNotEnforced})
	require.NoError(t, err)
	require.LessOrEqual(t, len(events.Items), 1)
	for _, event := range events.Items {
		t.Log(event.Message)
	}
	end()
	require.NoError(t, <-done)
}
