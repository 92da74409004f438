//go:build integration

package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/pidfile"
	"github.com/berth-dev/berth/volume/testsuite"
)

const (
	// slowestAPI is how long the API server may take for 99 of 100 requests while a bad neighbour runs: on a machine that has much else
	// to do, slowdown times as long as just before that.
	slowestAPI = time.Second
	slowdown   = 4
	// neighbourTime is for how long a neighbour that does not end is watched.
	neighbourTime = 5 * time.Second
	// neighbourPIDs is how many processes a Pod may have in these tests.
	neighbourPIDs = 200
)

// witness writes files with their checksums to its volume and reads all of them back, again and again. It fails if one has changed.
const witness = `i=0; while :; do i=$((i+1)); n=$((i%20)); /bin/busybox dd if=/dev/urandom of=/data/$n bs=64k count=1 2>/dev/null || exit 1; ` +
	`/bin/busybox md5sum /data/$n > /data/$n.sum || exit 2; for f in /data/*.sum; do /bin/busybox md5sum -c -s $f || exit 3; done; echo $i > /data/count; ` +
	`/bin/busybox usleep 100000; done`

// neighbourhood is a cluster with a witness.
type neighbourhood struct {
	*cluster
	t *testing.T
}

// TestBadNeighbours runs one bad neighbour after the other. During each the API server responds, no process of the cluster ends,
// and a Pod that writes to its volume loses nothing.
func TestBadNeighbours(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync", "--pod-max-pids", fmt.Sprint(neighbourPIDs))
	importShell(t, c)
	volumes := `"volumes": [{"name": "data", "emptyDir": {}}]`
	c.apply(podManifest("witness", shell(witness, `"volumeMounts": [{"name": "data", "mountPath": "/data"}]`), volumes))
	c.waitPod("name=witness", "ready", isReady)
	n := &neighbourhood{c, t}
	for _, one := range []struct {
		name string
		act  func(*testing.T)
	}{
		{"fork bomb", n.forkBomb},
		{"memory hog", n.memoryHog},
		{"volume beyond its limit", n.volumeHog},
		{"log without newlines", n.endlessLine},
		{"log flood", n.logFlood},
		{"huge termination message", n.hugeMessage},
		{"requests without credentials", n.noCredentials},
		{"exec flood", n.execFlood},
		{"dead file server", n.deadServer},
	} {
		if !t.Run(one.name, func(t *testing.T) { n.during(t, one.act) }) {
			break
		}
	}
	c.stop()
	require.Empty(t, c.leftovers())
}

// during runs a neighbour and checks all others.
func (n *neighbourhood) during(t *testing.T, act func(*testing.T)) {
	t.Helper()
	before, count := n.programs(t), n.witnessed(t)
	memory := n.memory(t)
	ctx, cancel := context.WithTimeout(t.Context(), neighbourTime/2)
	allowed := max(slowestAPI, slowdown*p99(t, n.probeAPI(ctx)))
	cancel()
	ctx, cancel = context.WithCancel(t.Context())
	var took []time.Duration
	var probes sync.WaitGroup
	probes.Go(func() { took = n.probeAPI(ctx) })
	act(t)
	time.Sleep(time.Second) // its end is a part of it
	cancel()
	probes.Wait()
	require.Equal(t, before, n.programs(t), "processes of the cluster")
	slowest := p99(t, took)
	t.Logf("API: %d requests, median %s, p99 %s of %s; memory of berth: %d MiB, before %d MiB", len(took), took[len(took)/2], slowest, allowed,
		n.memory(t)>>20, memory>>20)
	require.LessOrEqual(t, slowest, allowed)
	require.Less(t, n.memory(t), memory+128<<20)
	require.NoError(t, n.poll(func(context.Context) bool { return n.witnessed(t) > count }), "the witness goes on")
}

// p99 returns how long 99 of 100 requests took at most, and sorts them.
func p99(t *testing.T, took []time.Duration) time.Duration {
	t.Helper()
	require.NotEmpty(t, took)
	slices.Sort(took)
	return took[len(took)*99/100]
}

// probeAPI reads and writes until ctx ends, and returns how long each request took.
func (n *neighbourhood) probeAPI(ctx context.Context) (took []time.Duration) {
	client := n.client()
	for ctx.Err() == nil {
		began := time.Now()
		config, err := client.CoreV1().ConfigMaps("default").Get(context.WithoutCancel(ctx), "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil {
			metav1.SetMetaDataAnnotation(&config.ObjectMeta, "probe", began.String())
			_, err = client.CoreV1().ConfigMaps("default").Update(context.WithoutCancel(ctx), config, metav1.UpdateOptions{})
		}
		if err != nil {
			took = append(took, time.Hour)
			continue
		}
		took = append(took, time.Since(began))
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return took
}

// programs are the pid files of the cluster's processes, with their content.
func (n *neighbourhood) programs(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.runDir(), "*.pid"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	found := map[string]string{"berth": fmt.Sprint(n.cmd.Process.Pid, n.cmd.ProcessState)}
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		found[filepath.Base(file)] = string(content)
	}
	return found
}

// nodeProcess is the process with the kubelet and the controllers.
func (n *neighbourhood) nodeProcess(t *testing.T) int {
	t.Helper()
	pid := pidfile.Running(pidfile.Proc, filepath.Join(n.runDir(), "node.pid"))
	require.NotZero(t, pid)
	return pid
}

// memory is the resident memory of that process, in bytes.
func (n *neighbourhood) memory(t *testing.T) int64 {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", n.nodeProcess(t)))
	require.NoError(t, err)
	var size, resident int64
	_, err = fmt.Sscan(string(content), &size, &resident)
	require.NoError(t, err)
	return resident * int64(os.Getpagesize())
}

// witnessed is how often the witness has written, as its volume on the disk says.
func (n *neighbourhood) witnessed(t *testing.T) int {
	t.Helper()
	pod, err := n.client().CoreV1().Pods("default").Get(t.Context(), "witness", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.PodRunning, pod.Status.Phase)
	require.Zero(t, pod.Status.ContainerStatuses[0].RestartCount, "the witness has found a file that has changed: %v", pod.Status)
	content, err := os.ReadFile(filepath.Join(n.dataDir, "kubelet/pods", string(pod.UID), "volumes/kubernetes.io~empty-dir/data/count"))
	if err != nil {
		return 0
	}
	count := 0
	_, _ = fmt.Sscan(string(content), &count) // it is being written
	return count
}

// bad runs a bad neighbour.
func (n *neighbourhood) bad(t *testing.T, name, script, more, spec string) {
	t.Helper()
	if more != "" {
		more += ", "
	}
	resources := `"resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}`
	n.apply(podManifest(name, shell(script, more+resources), spec))
	t.Cleanup(func() { n.mustRun("kubectl", "delete", "pod", name, "--grace-period=1") })
}

// ended waits until a neighbour has failed, and returns its status.
func (n *neighbourhood) ended(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := n.waitPod("name="+name, "failed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	return pod
}

func (n *neighbourhood) explains(t *testing.T, name, reason string) {
	t.Helper()
	out, _ := n.run("explain", "pod/"+name)
	require.Contains(t, out, reason)
}

const never = `"restartPolicy": "Never"`

func (n *neighbourhood) forkBomb(t *testing.T) {
	n.bad(t, "bomb", `while :; do ( while :; do /bin/busybox sleep 1000 & done ); /bin/busybox sleep 1; done`, "", never)
	pod := n.waitPod("name=bomb", "running", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
	most := 0
	watch := func() {
		for _, pattern := range []string{"/sys/fs/cgroup/pids/berth-%s/kubepods/pod%s/pids.current", "/sys/fs/cgroup/berth-%s/kubepods/pod%s/pids.current"} {
			content, _ := os.ReadFile(fmt.Sprintf(pattern, n.id(), pod.UID)) // of the other version of cgroups
			now := 0
			_, _ = fmt.Sscan(string(content), &now)
			most = max(most, now)
		}
	}
	require.NoError(t, n.poll(func(context.Context) bool { watch(); return most > neighbourPIDs/4 }), "the bomb has %d processes", most)
	for deadline := time.Now().Add(neighbourTime); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		watch()
	}
	require.LessOrEqual(t, most, neighbourPIDs)
}

func (n *neighbourhood) memoryHog(t *testing.T) {
	n.bad(t, "hog", `/bin/busybox tail /dev/zero`, "", never)
	pod := n.ended(t, "hog")
	require.Equal(t, "OOMKilled", pod.Status.ContainerStatuses[0].State.Terminated.Reason)
	n.explains(t, "hog", "OOMKilled")
}

func (n *neighbourhood) volumeHog(t *testing.T) {
	n.bad(t, "filler", `/bin/busybox dd if=/dev/zero of=/fill/x bs=1M count=64; /bin/busybox sleep 1000`,
		`"volumeMounts": [{"name": "fill", "mountPath": "/fill"}]`,
		never+`, "volumes": [{"name": "fill", "emptyDir": {"sizeLimit": "8Mi"}}]`)
	require.Equal(t, "Evicted", n.ended(t, "filler").Status.Reason)
	n.explains(t, "filler", "was evicted")
}

func (n *neighbourhood) endlessLine(t *testing.T) {
	n.bad(t, "line", `/bin/busybox tr '\0' x </dev/zero | /bin/busybox head -c 200000000; exit 7`,
		`"terminationMessagePolicy": "FallbackToLogsOnError"`, never)
	message := n.ended(t, "line").Status.ContainerStatuses[0].State.Terminated.Message
	require.Equal(t, strings.Repeat("x", 2048), message)
	n.explains(t, "line", "7")
}

func (n *neighbourhood) logFlood(t *testing.T) {
	n.bad(t, "flood", `/bin/busybox yes flood`, "", never)
	pod := n.waitPod("name=flood", "ready", isReady)
	dir := filepath.Join(n.dataDir, "log/pods", "default_flood_"+string(pod.UID), "main")
	most := int64(0)
	for deadline := time.Now().Add(2 * neighbourTime); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		sum := int64(0)
		for _, entry := range entries {
			if info, err := entry.Info(); err == nil {
				sum += info.Size()
			}
		}
		most = max(most, sum)
	}
	t.Logf("at most %d MiB of logs", most>>20)
	require.Less(t, most, int64(200<<20), "bytes of logs")
}

func (n *neighbourhood) hugeMessage(t *testing.T) {
	n.bad(t, "message", `/bin/busybox dd if=/dev/zero bs=1M count=32 | /bin/busybox tr '\0' y > /dev/termination-log; exit 3`, "", "")
	pod := n.waitPod("name=message", "crashing", func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].RestartCount > 0 &&
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated != nil
	})
	require.Len(t, pod.Status.ContainerStatuses[0].LastTerminationState.Terminated.Message, 4096)
}

func (n *neighbourhood) noCredentials(t *testing.T) {
	log := filepath.Join(n.dataDir, "log", "berth.log")
	before, err := os.Stat(log)
	require.NoError(t, err)
	client := &http.Client{
		Timeout: neighbourTime,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxConnsPerHost: 20,
		},
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), neighbourTime)
	defer cancel()
	var group sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	for range 8 {
		group.Go(func() {
			for ctx.Err() == nil {
				request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+n.gateway()+":10250/pods", nil)
				request.Header.Set("Authorization", "Bearer x")
				response, err := client.Do(request)
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				mu.Lock()
				refused++
				mu.Unlock()
				if response.StatusCode != http.StatusUnauthorized {
					t.Errorf("status %s", response.Status)
				}
			}
		})
	}
	group.Wait()
	after, err := os.Stat(log)
	require.NoError(t, err)
	t.Logf("%d requests were refused; berth.log grew by %d bytes", refused, after.Size()-before.Size())
	require.Positive(t, refused)
	require.Less(t, after.Size()-before.Size(), int64(256<<10))
}

func (n *neighbourhood) execFlood(t *testing.T) {
	n.bad(t, "target", "sleep 1000", "", never)
	n.waitPod("name=target", "ready", isReady)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 6 {
				_, _ = n.run("kubectl", "exec", "target", "--", "/bin/busybox", "true")
			}
		})
	}
	group.Wait()
}

func (n *neighbourhood) deadServer(t *testing.T) {
	share := filepath.Join(filepath.Dir(n.dataDir), "share")
	require.NoError(t, os.Mkdir(share, 0o755))
	n.bad(t, "share", "sleep 1000", `"volumeMounts": [{"name": "share", "mountPath": "/share"}]`,
		never+`, "volumes": [{"name": "share", "hostPath": {"path": "`+share+`"}}]`)
	n.waitPod("name=share", "ready", isReady)
	stop := testsuite.DeadFileServer(t, share)
	defer stop()
	for range 5 {
		began := time.Now()
		out := n.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/stats/summary")
		require.Contains(t, out, `"witness"`)
		require.Less(t, time.Since(began), 15*time.Second)
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", n.nodeProcess(t)))
	require.NoError(t, err)
	require.Less(t, len(threads), 100, "threads")
}
