//go:build integration

package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/testnet"
	"github.com/berth-dev/berth/up/isolate"
)

// waitTimeout bounds every wait of these tests. It is generous, because a loaded machine is slow and a test that
// fails for lack of time proves nothing.
var waitTimeout = 3 * time.Minute

func init() {
	flag.DurationVar(&waitTimeout, "wait-timeout", waitTimeout, "bound of every wait; longer on a machine that has much else to do")
}

// berthBinary is the program under test.
func berthBinary(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/berth")
	require.NoError(t, err)
	_, err = os.Stat(path)
	require.NoError(t, err, "run make build first")
	require.Zero(t, os.Geteuid(), "these tests need root")
	return path
}

// homeNode is the name of the node that `berth up` runs, in each cluster.
const homeNode = "home"

// testRuntime is the runtime of the Pods of clusters and nodes; empty for the default. up/containerd's tests read it, too.
var testRuntime = os.Getenv("BERTH_TEST_RUNTIME")

// cluster is a data directory with the `berth up` processes that run on it, one after the other.
type cluster struct {
	t       testing.TB
	berth   string
	dataDir string
	network int // the second byte of its Pods' addresses; its Services' and its machines' follow
	port    int // the API server's
	args    []string

	cmd   *exec.Cmd
	ended chan error
	out   *output
	// links are the Pods' network interfaces seen so far.
	links []string
}

// newCluster prepares a cluster with a network of its own; up starts it. The end of the test removes everything.
func newCluster(t testing.TB) *cluster { t.Helper(); return newClusterIn(t, "data") }

// newClusterIn is newCluster with the name of its data directory.
func newClusterIn(t testing.TB, name string) *cluster {
	t.Helper()
	network := testnet.Claim(t)
	c := &cluster{
		t: t, berth: berthBinary(t), dataDir: filepath.Join(shortDir(t), name), network: network, port: freePort(t),
	}
	c.args = []string{
		"--data-dir", c.dataDir,
		"--api-port", strconv.Itoa(c.port),
		"--node-name", homeNode,
		"--pod-cidr", testnet.Prefix(network).String(),
		"--service-cidr", testnet.Prefix(network + 1).String(),
		"--without", "kube-proxy,dns", // a network namespace allows one kube-proxy, and these tests run several clusters
	}
	if testRuntime != "" {
		c.args = append(c.args, "--runtime", testRuntime)
	}
	guardNode(t, "berth-"+c.id(), "berth"+c.id(), filepath.Dir(c.dataDir), c.runDir())
	t.Cleanup(func() {
		if t.Failed() {
			c.cleanup()
		}
	})
	t.Cleanup(func() {
		if c.cmd != nil {
			c.stop()
		}
		if t.Failed() {
			c.dumpLogs()
		}
	})
	return c
}

// up starts berth and returns once it prints that the cluster is ready, or the demo if it is enabled.
func (c *cluster) up(extra ...string) {
	c.t.Helper()
	c.launch(extra...)
	until := "is ready after"
	for _, arg := range extra {
		if arg == "--demo" {
			until = "delete it"
		}
	}
	c.out.waitFor(c.t, until, c.ended)
}

func (c *cluster) launch(extra ...string) {
	c.t.Helper()
	c.out = newOutput()
	c.cmd = exec.Command(c.berth, append(append([]string{"up"}, c.args...), extra...)...)
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	require.NoError(c.t, c.cmd.Start())
	c.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan<- error) { ended <- cmd.Wait(); close(ended) }(c.cmd, c.ended)
}

// stop sends SIGINT, as Ctrl-C does, and waits for the orderly end.
func (c *cluster) stop() {
	c.t.Helper()
	require.NoError(c.t, c.interrupt(), "berth up must end with 0 after Ctrl-C; it printed:\n%s", c.out)
}

// interrupt is stop for a cluster that may end with an error, which it returns.
func (c *cluster) interrupt() (ended error) {
	c.t.Helper()
	c.noteLinks()
	_ = c.cmd.Process.Signal(syscall.SIGINT) // it may have ended already, which the wait below reports
	select {
	case ended = <-c.ended:
	case <-time.After(waitTimeout):
		c.t.Fatalf("berth up does not stop; it printed:\n%s", c.out)
	}
	c.cmd = nil
	return ended
}

// killAll ends every process of the cluster with SIGKILL: berth, its children, and the shims with their containers.
func (c *cluster) killAll() {
	c.t.Helper()
	c.noteLinks()
	pids := c.processes()
	require.NotEmpty(c.t, pids)
	for pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // one may have died with another
	}
	select {
	case <-c.ended:
	case <-time.After(waitTimeout):
		c.t.Fatal("berth up survived SIGKILL")
	}
	c.cmd = nil
	// The processes that inherited the lock end a little later.
	require.NoError(c.t, c.poll(func(context.Context) bool {
		lock, err := filelock.Acquire(filepath.Join(c.dataDir, isolate.LockName))
		return err == nil && lock.Close() == nil
	}), "%s stays locked", c.dataDir)
}

// killBerth ends only `berth up` itself with SIGKILL.
func (c *cluster) killBerth() {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Kill())
	select {
	case <-c.ended:
	case <-time.After(waitTimeout):
		c.t.Fatal("berth up survived SIGKILL")
	}
	c.cmd = nil
}

// gateway is the address of the cluster's own node.
func (c *cluster) gateway() string { return testnet.Prefix(c.network).Addr().Next().String() }

func (c *cluster) id() string {
	sum := sha256.Sum256([]byte(c.dataDir))
	return hex.EncodeToString(sum[:4])
}

func (c *cluster) runDir() string { return "/run/berth/" + c.id() }

// isProgram reports whether a command line is that of a program. A shim has containerd's path among its arguments.
func isProgram(command, program string) bool {
	path, _, _ := strings.Cut(command, " ")
	return filepath.Base(path) == program
}

// processes are the living processes that belong to the cluster, with their command lines: those that name its
// directories, and those in its cgroups.
func (c *cluster) processes() map[int]string {
	found := make(map[int]string)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(c.t, err)
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may end meanwhile
		if _, err := os.Readlink(filepath.Join(dir, "exe")); err != nil {
			continue // it is a zombie
		}
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		text := strings.ReplaceAll(string(command), "\x00", " ")
		if strings.Contains(text, c.dataDir) || strings.Contains(text, c.runDir()) || bytes.Contains(groups, []byte("berth-"+c.id())) {
			found[pid] = text
		}
	}
	return found
}

// leftovers lists everything of the cluster that is still on the machine besides its data directory.
func (c *cluster) leftovers() []string {
	var left []string
	for pid, command := range c.processes() {
		left = append(left, fmt.Sprintf("process %d: %s", pid, command))
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(c.t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, c.dataDir) || strings.Contains(line, c.runDir()) {
			left = append(left, "mount: "+strings.TrimSpace(line))
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/berth-" + c.id(), "/sys/fs/cgroup/*/berth-" + c.id(), c.runDir(),
		"/sys/class/net/berth" + c.id()} {
		paths, err := filepath.Glob(pattern)
		require.NoError(c.t, err)
		left = append(left, paths...)
	}
	for _, link := range c.links {
		if _, err := os.Stat("/sys/class/net/" + link); err == nil {
			left = append(left, "network interface "+link)
		}
	}
	return left
}

// noteLinks records the Pods' interfaces that are on the bridge now, for leftovers.
func (c *cluster) noteLinks() {
	links, err := filepath.Glob("/sys/class/net/berth" + c.id() + "/brif/*")
	require.NoError(c.t, err)
	for _, link := range links {
		c.links = append(c.links, filepath.Base(link))
	}
}

// run calls berth with the arguments and returns its output.
func (c *cluster) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.berth, append([]string{"--data-dir", c.dataDir}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// mustRun is run for calls that must succeed.
func (c *cluster) mustRun(args ...string) string {
	c.t.Helper()
	out, err := c.run(args...)
	require.NoError(c.t, err, "berth %s printed:\n%s", strings.Join(args, " "), out)
	return out
}

// apply gives a manifest to kubectl.
func (c *cluster) apply(manifest string) {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "manifest.yaml")
	require.NoError(c.t, os.WriteFile(path, []byte(manifest), 0o600))
	c.mustRun("kubectl", "apply", "-f", path)
}

func (c *cluster) client() *kubernetes.Clientset {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dataDir, "admin.kubeconfig"))
	require.NoError(c.t, err)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	require.NoError(c.t, err)
	return client
}

// waitPod waits until a Pod with the label satisfies the condition, and returns it.
func (c *cluster) waitPod(selector, what string, satisfied func(*corev1.Pod) bool) *corev1.Pod {
	c.t.Helper()
	client := c.client()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = selector
			return client.CoreV1().Pods("default").List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			return client.CoreV1().Pods("default").Watch(ctx, options)
		},
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), waitTimeout)
	defer cancel()
	var found *corev1.Pod
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.Pod{}, nil, func(event watch.Event) (bool, error) {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type == watch.Deleted || !satisfied(pod) {
			return false, nil
		}
		found = pod
		return true, nil
	})
	if err != nil {
		out, _ := c.run("kubectl", "get", "pods,pvc,pv,events", "-A", "-o", "wide")
		nodes, _ := c.run("kubectl", "get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name}: {.spec.taints} {.status.conditions}{"\n"}{end}`)
		require.NoError(c.t, err, "wait for a Pod %s to be %s; there is:\n%s\nand of nodes:\n%s", selector, what, out, nodes)
	}
	return found
}

func isReady(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.PodIP == "" {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

var pageLine = regexp.MustCompile(`page\s+(http://\S+)`)

// visit fetches the demo's page by its Pod's address and returns the count after the visit.
func visit(t testing.TB, ip string) int {
	t.Helper()
	base := "http://" + net.JoinHostPort(ip, "8080")
	page := get(t, base+"/")
	require.Contains(t, page, "<html", "the page is HTML")
	count, err := strconv.Atoi(strings.TrimSpace(get(t, base+"/count")))
	require.NoError(t, err)
	return count
}

func get(t testing.TB, url string) string {
	t.Helper()
	return getBy(t, &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}, Timeout: waitTimeout}, url)
}

// getBy returns the body of a response, which must be a success.
func getBy(t testing.TB, client *http.Client, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, string(body))
	return string(body)
}

// logTailBytes is how many bytes of each log a failed test shows: with more of them, what failed is lost where only the end
// of the output is kept.
const logTailBytes = 2000

// keepLogs is the directory for the complete logs of a failed test: the cause of a failure may be far from their end.
var keepLogs = flag.String("keep-logs", "", "directory for the whole logs of the clusters of failed tests")

// dumpLogs shows the ends of the logs of a failed test.
func (c *cluster) dumpLogs() {
	logs, _ := filepath.Glob(filepath.Join(c.dataDir, "log", "*.log"))
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if *keepLogs != "" {
			kept := filepath.Join(*keepLogs, strings.ReplaceAll(c.t.Name(), "/", "-")+"-"+filepath.Base(path))
			if err := errors.Join(os.MkdirAll(*keepLogs, 0o755), os.WriteFile(kept, data, 0o600)); err != nil {
				c.t.Logf("keep %s: %v", path, err)
			}
		}
		c.t.Logf("end of %s:\n%s", filepath.Base(path), data[max(0, len(data)-logTailBytes):])
	}
}

// reachable reports whether something listens on the demo's port within the limit.
func reachable(t testing.TB, ip string, limit time.Duration) bool {
	t.Helper()
	dialer := net.Dialer{Timeout: limit}
	connection, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(ip, "8080"))
	if err != nil {
		return false
	}
	require.NoError(t, connection.Close())
	return true
}
