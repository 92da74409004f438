package nodenetwork

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/pidfile"
)

// criServer is a container runtime with one sandbox, whose process and container are the given ones.
type criServer struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	uid                string
	sandbox, container int
}

func (s *criServer) ListPodSandbox(_ context.Context, in *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	var response runtimeapi.ListPodSandboxResponse
	if in.Filter.LabelSelector["io.kubernetes.pod.uid"] == s.uid {
		response.Items = []*runtimeapi.PodSandbox{{Id: "s"}}
	}
	return &response, nil
}

func (s *criServer) PodSandboxStatus(context.Context, *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Info: processInfo(s.sandbox)}, nil
}

func (s *criServer) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	var response runtimeapi.ListContainersResponse
	if s.container != 0 {
		response.Containers = []*runtimeapi.Container{{Id: "c"}}
	}
	return &response, nil
}

func (s *criServer) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Info: processInfo(s.container)}, nil
}

func processInfo(pid int) map[string]string {
	return map[string]string{"info": fmt.Sprintf(`{"pid": %d}`, pid)}
}

// startRuntime serves a runtime with a Pod of the UID "a", and returns its socket.
func startRuntime(t *testing.T, runtime *criServer) string {
	t.Helper()
	runtime.uid = "a"
	socket := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, runtime)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return socket
}

func pod(uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: uid}}}
}

// otherNetwork starts a process in a network namespace of its own, in which a web server listens on 127.0.0.1:8080.
func otherNetwork(t *testing.T) int {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index.html"), []byte("there"), 0o600))
	process := exec.Command("/bin/sh", "-c", "ip link set lo up && exec busybox httpd -f -p 127.0.0.1:8080 -h "+dir)
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	require.NoError(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	return process.Process.Pid
}

func TestConnectionsFromThePod(t *testing.T) {
	pid := otherNetwork(t)
	n := New(Config{RuntimeSocket: startRuntime(t, &criServer{sandbox: pid})})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return n.Dial(ctx, pod("a"), network, address)
	}}}
	var body string
	require.Eventually(t, func() bool {
		response, err := client.Get("http://127.0.0.1:8080/")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		buffer := make([]byte, 100)
		length, _ := response.Body.Read(buffer)
		body = string(buffer[:length])
		return true
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, "there", body)

	sockets, err := n.Sockets(t.Context(), pod("a"))
	require.NoError(t, err)
	require.Len(t, sockets, 1)
	require.Equal(t, fmt.Sprintf("busybox (process %d)", pid), sockets[0].Process)
	sockets[0].Process = ""
	require.Equal(t, []explain.Socket{{Protocol: corev1.ProtocolTCP, Address: net.IPv4(127, 0, 0, 1).To4(), Port: 8080}}, sockets)

	_, err = n.Dial(t.Context(), pod("b"), "tcp", "127.0.0.1:8080")
	require.ErrorIs(t, err, explain.ErrOtherMachine)
	_, err = n.Sockets(t.Context(), pod("b"))
	require.ErrorIs(t, err, explain.ErrOtherMachine)
}

func TestSocketsOfTheNode(t *testing.T) {
	listener, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6: ", err)
	}
	defer listener.Close()
	sockets, err := New(Config{}).Sockets(t.Context(), nil)
	require.NoError(t, err)
	var found bool
	for _, socket := range sockets {
		if int(socket.Port) == listener.Addr().(*net.TCPAddr).Port {
			found = true
			require.Equal(t, "::1", socket.Address.String())
			require.Contains(t, socket.Process, fmt.Sprintf("(process %d)", os.Getpid()))
		}
	}
	require.True(t, found)
}

func TestFilesOfAContainer(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "root/etc"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("of the machine"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "root/etc/real"), []byte("nameserver 10.0.0.1"), 0o600))
	require.NoError(t, os.Symlink("/etc/real", filepath.Join(dir, "root/etc/resolv.conf")))
	require.NoError(t, os.Symlink("../../secret", filepath.Join(dir, "root/etc/out")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "root/etc/pipe"), 0o600))
	root := filepath.Join(dir, "root")

	data, err := readBelow(root, "/etc/resolv.conf")
	require.NoError(t, err)
	require.Equal(t, "nameserver 10.0.0.1", string(data))
	_, err = readBelow(root, "/etc/out")
	require.ErrorIs(t, err, fs.ErrNotExist, "a link does not lead to the machine's files")
	_, err = readBelow(root, "/etc/pipe")
	require.ErrorContains(t, err, "no regular file")
	_, err = readBelow(filepath.Join(dir, "none"), "/etc/out")
	require.Error(t, err)
}

func TestFilesOfTheContainerComeBeforeThoseOfTheSandbox(t *testing.T) {
	n := New(Config{RuntimeSocket: startRuntime(t, &criServer{sandbox: 1 << 30, container: os.Getpid()})})
	file := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	data, err := n.ReadFile(t.Context(), pod("a"), file)
	require.NoError(t, err)
	require.Equal(t, "content", string(data))
	without := New(Config{RuntimeSocket: startRuntime(t, &criServer{})})
	_, err = without.ReadFile(t.Context(), pod("a"), file)
	require.ErrorContains(t, err, "does not report the process")
}

// TestProcessesOfAnotherPIDNamespace has a socket of a process in a PID namespace, as an isolated cluster.
func TestProcessesOfAnotherPIDNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	socket := filepath.Join(t.TempDir(), "s")
	// unshare mounts the procfs of the PID namespace in which it is started.
	process := exec.Command("unshare", "--mount-proc", os.Args[0], "-test.run", "TestHelperListens")
	process.Env = append(os.Environ(), "LISTEN_ON="+socket)
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	require.NoError(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	n := New(Config{PeerSocket: socket})
	var proc string
	require.Eventually(t, func() bool { proc = n.proc(t.Context()); return proc != pidfile.Proc }, time.Minute, 10*time.Millisecond)
	comm, err := os.ReadFile(filepath.Join(proc, "1/comm"))
	require.NoError(t, err)
	require.NotEmpty(t, comm)
	entries, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	require.NoError(t, err)
	require.Len(t, entries, 1, "only the processes of the namespace")
	require.Equal(t, pidfile.Proc, New(Config{PeerSocket: socket + "x"}).proc(t.Context()))
}

// TestHelperListens is no test: TestProcessesOfAnotherPIDNamespace runs it as a program.
func TestHelperListens(t *testing.T) {
	socket := os.Getenv("LISTEN_ON")
	if socket == "" {
		t.Skip("it serves another test")
	}
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	for {
		conn, err := listener.Accept()
		require.NoError(t, err)
		_ = conn.Close()
	}
}

func TestStateOfTheProxy(t *testing.T) {
	queued, synced := time.Now().Add(-time.Minute), time.Now().Add(-2*time.Minute)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "# TYPE kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge\n"+
			"# TYPE kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge\n# TYPE kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter")
		fmt.Fprintf(w, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"} %f\n", float64(queued.UnixMicro())/1e6)
		fmt.Fprintf(w, "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} %f\n", float64(synced.UnixMicro())/1e6)
		fmt.Fprintln(w, `kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 3`)
	}))
	defer server.Close()
	dir := t.TempDir()
	process := Process{ConfigFile: filepath.Join(dir, "config"), PIDFile: filepath.Join(dir, "pid"), LogFile: filepath.Join(dir, "log")}
	n := New(Config{Proxy: process})

	state, err := n.Proxy(t.Context())
	require.NoError(t, err)
	require.True(t, state.Disabled, "it has no configuration")
	require.NoError(t, os.WriteFile(process.ConfigFile, []byte(`{"metricsBindAddress": "`+server.Listener.Addr().String()+`"}`), 0o600))
	require.NoError(t, os.WriteFile(process.LogFile, []byte("one\nthe reason\n"), 0o600))
	state, err = n.Proxy(t.Context())
	require.NoError(t, err)
	require.Contains(t, state.Problem, "does not run: the reason")
	require.NoError(t, pidfile.Write(process.PIDFile, os.Getpid()))
	state, err = n.Proxy(t.Context())
	require.NoError(t, err)
	require.Empty(t, state.Problem)
	require.Equal(t, 3, state.Failures)
	require.WithinDuration(t, queued, state.QueuedAt, time.Millisecond)
	require.WithinDuration(t, synced, state.SyncedAt, time.Millisecond)
	server.Close()
	state, err = n.Proxy(t.Context())
	require.NoError(t, err)
	require.Contains(t, state.Problem, "does not respond")

	_, err = New(Config{}).Proxy(t.Context())
	require.ErrorContains(t, err, "unknown here")
	require.NoError(t, os.WriteFile(process.ConfigFile, []byte(`{`), 0o600))
	_, err = n.Proxy(t.Context())
	require.ErrorContains(t, err, "read the configuration of kube-proxy")
}

func TestTheFamilyFurthestBehindCounts(t *testing.T) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := func(text string) map[string]*dto.MetricFamily {
		parsed, err := parser.TextToMetricFamilies(strings.NewReader(text))
		require.NoError(t, err)
		return parsed
	}
	queued, synced := laggingFamily(families(`
# TYPE kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 100
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 90
# TYPE kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 99
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 80
`))
	require.EqualValues(t, 90, queued.Unix())
	require.EqualValues(t, 80, synced.Unix())
	queued, _ = laggingFamily(families(""))
	require.True(t, queued.IsZero())
}

func TestProblemsOfTheDNS(t *testing.T) {
	dir := t.TempDir()
	process := Process{ConfigFile: filepath.Join(dir, "Corefile"), PIDFile: filepath.Join(dir, "pid"), LogFile: filepath.Join(dir, "log")}
	n := New(Config{DNS: process, Resolvers: func() ([]string, string, error) { return []string{"10.0.0.1"}, "/f", nil }})
	require.Empty(t, n.DNSProblem(t.Context()), "the cluster has none")
	require.NoError(t, os.WriteFile(process.ConfigFile, nil, 0o600))
	require.Contains(t, n.DNSProblem(t.Context()), "does not run: no log")
	require.NoError(t, pidfile.Write(process.PIDFile, os.Getpid()))
	require.Empty(t, n.DNSProblem(t.Context()))
	servers, file, err := n.Resolvers(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.1"}, servers)
	require.Equal(t, "/f", file)
	_, _, err = New(Config{}).Resolvers(t.Context())
	require.Error(t, err)
	require.False(t, errors.Is(err, fs.ErrNotExist))
}
