//go:build integration

package berthtest_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/berthtest"
)

// TestMain uses the programs of this build, which an ordinary user has elsewhere.
func TestMain(m *testing.M) {
	bin, err := filepath.Abs("../bin")
	if err == nil && os.Getenv(withoutRoot) == "" {
		err = os.Setenv("BERTH_BIN", bin)
	}
	if err != nil {
		panic(err)
	}
	flag.Parse()
	os.Exit(m.Run())
}

const web = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: example.test/demo:v1
        env: [{name: DATA_DIR, value: /tmp}]
        volumeMounts: [{name: tmp, mountPath: /tmp}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
      volumes: [{name: tmp, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestStart runs a workload whose image is built from a Go package.
func TestStart(t *testing.T) {
	t.Parallel()
	c := berthtest.Start(t)
	c.LoadImage("example.test/demo:v1", "github.com/berth-dev/berth/images/demo")
	c.Apply(web)
	deployment := berthtest.Eventually(c, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, "available",
		func(d *appsv1.Deployment) bool { return d.Status.AvailableReplicas == 2 })
	require.Equal(t, c.Namespace(), deployment.Namespace)
	require.Contains(t, c.Kubectl("get", "pods", "-l", "app=web", "-o", "name"), "pod/web-")
	require.Contains(t, c.Explain("svc/web"), "leads to 2 of 2 Pods")
}

// TestShared uses one cluster for several tests at the same time, whose namespaces are gone afterwards.
func TestShared(t *testing.T) {
	t.Parallel()
	namespaces := make(chan string, 2)
	t.Run("tests", func(t *testing.T) {
		for _, name := range []string{"one", "two"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := berthtest.Shared(t)
				namespaces <- c.Namespace()
				c.Apply(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "main"}, "spec": {"terminationGracePeriodSeconds": 0,
					"containers": [{"name": "main", "image": "berth.local/pause:v1"}]}}`)
				berthtest.Eventually(c, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "main"}}, "running",
					func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
			})
		}
	})
	c := berthtest.Shared(t)
	for range 2 {
		_, err := c.Client().CoreV1().Namespaces().Get(t.Context(), <-namespaces, metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	}
}

// TestLoadImage makes images of everything that LoadImage takes, and runs them all.
func TestLoadImage(t *testing.T) {
	t.Parallel()
	c := berthtest.Shared(t)
	bin := os.Getenv("BERTH_BIN")
	c.LoadImage("example.test/package:v1", "../images/demo")
	c.LoadImage("example.test/program:v1", filepath.Join(bin, "images", "pause"))
	archive, layout := filepath.Join(t.TempDir(), "image.tar"), t.TempDir()
	run := func(name string, args ...string) {
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run(filepath.Join(bin, "berth"), "--data-dir", filepath.Dir(c.Kubeconfig()), "images", "save", "example.test/program:v1", "-o", archive)
	c.LoadImage("example.test/archive:v1", archive)
	run("tar", "-C", layout, "-xf", archive)
	c.LoadImage("example.test/layout:v1", layout)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	var containers []string
	for _, name := range []string{"package", "program", "archive", "layout"} {
		containers = append(containers, `{"name": "`+name+`", "image": "example.test/`+name+`:v1", "imagePullPolicy": "Never"}`)
	}
	c.Apply(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "all"}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [` +
		strings.Join(containers, ", ") + `]}}`)
	berthtest.Eventually(c, pod, "ready", func(p *corev1.Pod) bool {
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	})
}
