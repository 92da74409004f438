//go:build integration

package berthtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/berthtest"
)

// inPool is set for the process that TestPool runs with a pool.
const inPool = "BERTHTEST_IN_POOL"

// TestPool starts clusters in a process that `berth pool` runs: each is new, its Node is ready at once, and nothing is left of those that the
// process did not stop. A test that fails logs what is stuck and writes a page.
func TestPool(t *testing.T) {
	if os.Getenv(inPool) != "" {
		t.Run("first", func(t *testing.T) { useCluster(t) })
		t.Run("second", func(t *testing.T) {
			c := useCluster(t)
			c.Apply(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stuck"}, "spec": {"nodeSelector": {"no": "node"},
				"containers": [{"name": "main", "image": "berth.local/pause:v1"}]}}`)
			berthtest.Eventually(c, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stuck"}}, "unschedulable",
				func(p *corev1.Pod) bool { return len(p.Status.Conditions) > 0 })
			c.LoadImage("example.test/busybox:v1", "/bin/busybox")
			c.Apply(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "speaker"}, "spec": {"restartPolicy": "Never",
				"containers": [{"name": "main", "image": "example.test/busybox:v1", "command": ["/busybox", "echo", "said by the Pod"]}]}}`)
			berthtest.Eventually(c, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "speaker"}}, "finished",
				func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
			t.Error("on purpose")
		})
		c := berthtest.Start(t)
		_, _ = os.Stdout.WriteString("\nnot stopped: " + filepath.Dir(c.Kubeconfig()) + "\n")
		os.Exit(3)
	}
	t.Parallel()
	tmp, err := os.MkdirTemp("", "bt")
	require.NoError(t, err)
	defer os.RemoveAll(tmp)
	cmd := exec.Command(filepath.Join(os.Getenv("BERTH_BIN"), "berth"), "pool", "--size", "1", "--", os.Args[0], "-test.run=^TestPool$", "-test.v")
	cmd.Env = append(os.Environ(), inPool+"=1", "TMPDIR="+tmp)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	require.Equal(t, 3, exit.ExitCode(), "that of the command: %s", out)
	require.Regexp(t, regexp.MustCompile(`not stopped: `+regexp.QuoteMeta(tmp)), string(out))
	for _, line := range regexp.MustCompile(`.*Node ready.*`).FindAllString(string(out), -1) {
		t.Log(line)
	}
	require.Regexp(t, regexp.MustCompile(`berth explain --all:\n.*\n.* pod/stuck +Waiting`), string(out))
	require.Regexp(t, regexp.MustCompile(`events in default:\n(.*\n)*.* pod/stuck FailedScheduling: `), string(out))
	require.Regexp(t, regexp.MustCompile(`logs of Pod speaker, which is Succeeded:\n.*said by the Pod`), string(out))
	pages, err := filepath.Glob(filepath.Join(tmp, "berthtest-*-failed", "TestPool_second.html"))
	require.NoError(t, err)
	require.Len(t, pages, 1)
	page, err := os.ReadFile(pages[0])
	require.NoError(t, err)
	require.Contains(t, string(page), "stuck")
	require.Empty(t, processesOf(t, tmp))
	require.Empty(t, leftoversOf(t, tmp))
	sockets, err := filepath.Glob(filepath.Join(tmp, "berth-pool-*"))
	require.NoError(t, err)
	require.Empty(t, sockets)
	directories, err := filepath.Glob(filepath.Join(tmp, "berthtest-*", "c*"))
	require.NoError(t, err)
	require.Empty(t, directories, "of clusters")
}

// useCluster starts a cluster and checks that it is new.
func useCluster(t *testing.T) *berthtest.Cluster {
	began := time.Now()
	c := berthtest.Start(t)
	node, err := c.Client().CoreV1().Nodes().Get(t.Context(), "node", metav1.GetOptions{})
	require.NoError(t, err)
	t.Logf("Node ready after %v", time.Since(began))
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			require.Equal(t, corev1.ConditionTrue, condition.Status)
		}
	}
	_, err = c.Client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
	require.NoError(t, err, "it is new")
	return c
}
