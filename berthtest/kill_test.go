//go:build integration

package berthtest_test

import (
	"bufio"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/berthtest"
	"github.com/berth-dev/berth/up"
)

var killCount = flag.Int("kills", 2, "how many test processes TestKilledTestLeavesNothing kills at random moments, beside the one whose Pod runs")

// killMe is set for the process that TestKilledTestLeavesNothing starts and kills.
const killMe = "BERTHTEST_KILL_ME"

// diskPod has a disk on a loop device.
const diskPod = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: berth-loop, accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: main}
spec:
  containers: [{name: main, image: "berth.local/pause:v1", volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// TestKilledTestLeavesNothing kills a test process whose Pod has a disk, and others at random moments of the start, of the Pod's start and
// after that. The kernel and what is left of the cluster end everything; the next start of a cluster removes the files.
func TestKilledTestLeavesNothing(t *testing.T) {
	if os.Getenv(killMe) != "" {
		c := berthtest.Start(t)
		c.Apply(diskPod)
		berthtest.Eventually(c, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "main"}}, "running",
			func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
		_, _ = os.Stdout.WriteString("\nkill me\n")
		select {}
	}
	t.Parallel()
	tmp, err := os.MkdirTemp("", "bt") // of its own, so that no other test cleans up
	require.NoError(t, err)
	defer os.RemoveAll(tmp)
	cold := killTest(t, tmp, 0) // from nothing
	if *killCount == 0 {
		return
	}
	whole := killTest(t, tmp, 0) // as the others, from a fork
	t.Logf("until the Pod ran: %v from nothing, %v from a fork", cold, whole)
	for range *killCount {
		killTest(t, tmp, 1+rand.N(whole+whole/4))
	}
}

// killTest starts a test process, kills it after a time, or when its Pod runs if that is 0, and checks that nothing is left but files. It
// returns how long the process lived.
func killTest(t *testing.T, tmp string, after time.Duration) time.Duration {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledTestLeavesNothing$", "-test.v")
	cmd.Env = append(os.Environ(), killMe+"=1", "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, cmd.Start())
	printed := make(chan string, 1)
	go func() {
		var text strings.Builder
		for scanner := bufio.NewScanner(out); scanner.Scan() && scanner.Text() != "kill me"; {
			text.WriteString(scanner.Text() + "\n")
		}
		printed <- text.String()
	}()
	var moment <-chan time.Time
	if after > 0 {
		moment = time.After(after)
	}
	text := "it was killed before its Pod ran"
	select {
	case text = <-printed:
	case <-moment:
	}
	lived := time.Since(began)
	paths, err := filepath.Glob(filepath.Join(tmp, "berthtest-*", "c*"))
	require.NoError(t, err)
	if after == 0 {
		require.NotEmpty(t, paths, text)
		require.NotEmpty(t, processesOf(t, tmp), text)
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Empty(c, processesOf(t, tmp))
		mounts, err := os.ReadFile("/proc/self/mounts")
		assert.NoError(c, err)
		assert.NotContains(c, string(mounts), tmp)
		assert.Empty(c, leftoversOf(t, tmp))
	}, time.Minute, 50*time.Millisecond, "killed after %v: the kernel and the cluster's first process end all\n%s", lived, text)
	return lived
}

// leftoversOf returns what is left on the machine, other than files, of clusters whose data directories are or were below a directory.
func leftoversOf(t *testing.T, tmp string) (left []*up.Leftover) {
	t.Helper()
	all, err := up.FindLeftovers(t.Context())
	require.NoError(t, err)
	var ids []string
	paths, err := filepath.Glob(filepath.Join(tmp, "berthtest-*", "c*"))
	require.NoError(t, err)
	for _, path := range paths {
		layout, err := up.NewLayout(up.Config{
			DataDir: filepath.Join(path, "data"), NodeName: "node", PodCIDR: up.DefaultPodCIDR, ServiceCIDR: up.DefaultServiceCIDR, APIPort: up.DefaultAPIPort,
		})
		require.NoError(t, err)
		ids = append(ids, layout.ID)
	}
	for _, one := range all {
		if slices.Contains(ids, one.ID) || strings.HasPrefix(one.DataDir, tmp) {
			left = append(left, one)
		}
	}
	return left
}

// processesOf lists the processes whose command line names the directory.
func processesOf(t *testing.T, dir string) (found []string) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), dir) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}
