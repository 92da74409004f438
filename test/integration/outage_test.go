//go:build integration

package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/kubelet/agent"
)

var away = flag.Duration("away", 5*time.Second, "the length of each of the two outages in TestAPIServerAway")

// apiGate is a proxy between a node and its API server that can refuse or suspend connections.
type apiGate struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu    sync.Mutex // guards all below
	shut  bool       // connections are refused
	mute  chan struct{}
	conns map[net.Conn]struct{}
}

// newAPIGate forwards to the target, a host and port.
func newAPIGate(t testing.TB, target string) *apiGate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &apiGate{listener: listener, target: target, conns: map[net.Conn]struct{}{}}
	g.running.Go(g.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		g.open()
		g.cut()
		g.running.Wait()
	})
	return g
}

func (g *apiGate) serve() {
	for {
		from, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.running.Go(func() { g.pass(from) })
	}
}

func (g *apiGate) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", g.target)
	if err != nil {
		return
	}
	defer to.Close()
	g.mu.Lock()
	shut := g.shut
	g.conns[from], g.conns[to] = struct{}{}, struct{}{}
	g.mu.Unlock()
	if shut {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], muteConn{way[0], g}) // it ends with either side
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	both.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, from)
	delete(g.conns, to)
}

// muteConn is a connection that passes nothing on while the gate is mute.
type muteConn struct {
	net.Conn
	gate *apiGate
}

func (m muteConn) Read(data []byte) (int, error) {
	n, err := m.Conn.Read(data)
	m.gate.mu.Lock()
	mute := m.gate.mute
	m.gate.mu.Unlock()
	if mute != nil {
		<-mute
	}
	return n, err
}

// cut ends all connections.
func (g *apiGate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.conns {
		_ = conn.Close()
	}
}

// close refuses connections from now on; silence keeps them open and passes nothing on.
func (g *apiGate) close() {
	g.mu.Lock()
	g.shut = true
	g.mu.Unlock()
	g.cut()
}

func (g *apiGate) silence() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mute = make(chan struct{})
}

func (g *apiGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
	if g.mute != nil {
		close(g.mute)
		g.mute = nil
	}
}

const (
	// waitReleased waits for a file in the journal.
	waitReleased = `while [ ! -e /journal/go ]; do sleep 0.1; done; `
	// exitOnceWhenReleased exits once it is released, and keeps running at its next start.
	exitOnceWhenReleased = `if [ $(grep -c exit /journal/log) -lt 1 ]; then ` + waitReleased + `echo exit >> /journal/log; exit 3; fi; ` + sleepScript
)

// release creates the file that a container waits for.
func (l *lifecycleRunner) release(names ...string) {
	l.t.Helper()
	for _, name := range names {
		require.NoError(l.t, os.WriteFile(filepath.Join(l.journal, name, "go"), nil, 0o600))
	}
}

// startReady creates a Pod and waits until its container is ready.
func (l *lifecycleRunner) startReady(life *scenario) {
	l.t.Helper()
	_, err := l.client.CoreV1().Pods("default").Create(l.t.Context(), l.pod(life), metav1.CreateOptions{})
	require.NoError(l.t, err)
	_, err = l.waitPod(l.t.Context(), life.name, "ready", func(pod *corev1.Pod) bool { return pod != nil && isReady(pod) })
	require.NoError(l.t, err)
}

// waitStarts waits until a journal has that many starts.
func (l *lifecycleRunner) waitStarts(name string, starts int) {
	l.t.Helper()
	require.NoError(l.t, retryUntil(l.t.Context(), func() error {
		got, _, err := l.readJournal(name)
		if err == nil && got < starts {
			err = fmt.Errorf("%d starts", got)
		}
		return err
	}, nil))
}

// TestAPIServerAway disconnects a node from its API server, which first refuses connections and then does not respond, and
// restarts the kubelet meanwhile. Pods keep running and are restarted; their statuses are written when the API server is
// reachable again.
func TestAPIServerAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	config := c.admin()
	g := newAPIGate(t, strings.TrimPrefix(config.Host, "https://"))
	through := rest.CopyConfig(config)
	through.Host = "https://" + g.listener.Addr().String()
	a := newTestNode(t, t.TempDir())
	a.start(through, func(*agent.Config) {})
	client := c.client()
	a.nodeReady(client)
	l := newLifecycleRunner(t, filepath.Join(c.dataDir, "admin.kubeconfig"), a.name)
	check := l.startHealthy(t.Context(), 2)

	for round, shut := range []func(){g.close, g.silence} {
		ends := scenario{name: fmt.Sprint("ends", round), script: waitReleased + "echo exit >> /journal/log; exit 0", policy: corev1.RestartPolicyNever}
		crashes := scenario{name: fmt.Sprint("crashes", round), script: exitOnceWhenReleased, policy: corev1.RestartPolicyAlways, exits: 1}
		l.startReady(&ends)
		l.startReady(&crashes)
		shut()
		l.release(ends.name, crashes.name)
		l.waitStarts(crashes.name, 2) // restarted without the API server
		time.Sleep(*away)             // the length of the outage
		if round == 0 {
			a.stop()
			a.start(through, func(*agent.Config) {})
		}
		g.open()
		pod, err := l.waitPod(t.Context(), ends.name, "reported as finished", func(pod *corev1.Pod) bool { return pod != nil && finished(pod) })
		require.NoError(t, err)
		require.Equal(t, corev1.PodSucceeded, pod.Status.Phase)
		pod, err = l.waitPod(t.Context(), crashes.name, "reported as restarted", func(pod *corev1.Pod) bool {
			return pod != nil && isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount > 0
		})
		require.NoError(t, err)
		require.NoError(t, l.checkJournal(&crashes, pod))
		a.nodeReady(client)
		require.NoError(t, check())
		require.NoError(t, errors.Join(l.deletePod(t.Context(), &ends), l.deletePod(t.Context(), &crashes)))
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	a.audit().requireClean(t, pods.Items)
}

// TestDiskFull fills the disk of a node that evicts nothing, other than that of TestPressureEvictsTheRightPod. Pods keep running
// and their statuses are written; a Pod that needs the disk waits, reports the reason, and continues when there is space again.
func TestDiskFull(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	disk := t.TempDir()
	require.NoError(t, unix.Mount("small", disk, "tmpfs", 0, "size=16m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	a := newTestNode(t, disk)
	a.start(c.admin(), func(*agent.Config) {})
	client := c.client()
	a.nodeReady(client)
	l := newLifecycleRunner(t, filepath.Join(c.dataDir, "admin.kubeconfig"), a.name)
	check := l.startHealthy(t.Context(), 1)
	ends := scenario{name: "ends", script: waitReleased + "echo exit >> /journal/log; exit 0", policy: corev1.RestartPolicyNever}
	l.startReady(&ends)

	filler := filepath.Join(disk, "filler")
	fillDisk(t, filler)
	late := scenario{name: "late", script: sleepScript, policy: corev1.RestartPolicyAlways}
	_, err := client.CoreV1().Pods("default").Create(t.Context(), l.pod(&late), metav1.CreateOptions{})
	require.NoError(t, err)
	l.release(ends.name)
	pod, err := l.waitPod(t.Context(), ends.name, "reported as finished", func(pod *corev1.Pod) bool { return pod != nil && finished(pod) })
	require.NoError(t, err)
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase)
	require.NoError(t, retryUntil(t.Context(), func() error { return checkNoSpaceReported(t.Context(), l, late.name) }, nil))
	require.NoError(t, check())

	require.NoError(t, os.Remove(filler))
	_, err = l.waitPod(t.Context(), late.name, "ready", func(pod *corev1.Pod) bool { return pod != nil && isReady(pod) })
	require.NoError(t, err)
	require.NoError(t, errors.Join(check(), l.deletePod(t.Context(), &late), l.deletePod(t.Context(), &ends)))
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	a.audit().requireClean(t, pods.Items)
}

// fillDisk writes until nothing fits any more.
func fillDisk(t testing.TB, path string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	for block := make([]byte, 64<<10); len(block) > 0; block = block[:len(block)/2] {
		for err = nil; err == nil; {
			_, err = file.Write(block)
		}
		require.ErrorIs(t, err, unix.ENOSPC)
	}
}

// checkNoSpaceReported looks for a Pod that waits, in its status or its events, because the disk is full.
func checkNoSpaceReported(ctx context.Context, l *lifecycleRunner, name string) error {
	events, err := l.client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return err
	}
	var said []string
	for i := range events.Items {
		said = append(said, events.Items[i].Message)
	}
	if pod, err := l.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err == nil {
		said = append(said, pod.Status.String())
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, "no space left on device") {
		return errors.New("no event or status says that the disk is full: " + text)
	}
	return nil
}
