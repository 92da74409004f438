// Package apiserver gives a test a real API server of its own: berth-controlplane from bin/, with etcd, the controller
// manager (without the controllers that Berth replaces) and the scheduler, and no node. It is for tests behind the
// build tag integration, which `make build` comes before.
package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/freeport"
	"github.com/berth-dev/berth/internal/testproc"
)

// startTimeout bounds the start. A loaded machine is slow, and a test that fails for lack of time proves nothing.
const startTimeout = 3 * time.Minute

// Admin is the identity that may do everything.
const Admin = "admin"

// Server is a running control plane. It ends with the test that started it.
type Server struct {
	dataDir string
}

// Start starts a control plane and returns when it is ready. A test that fails prints what it logged.
func Start(t testing.TB) *Server {
	t.Helper()
	binary := program(t)
	// A short path, since sockets' names are bounded.
	runDir, err := os.MkdirTemp("", "berth")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(runDir)) })
	s := &Server{dataDir: t.TempDir()}
	testproc.CleanupOnCrash(t, testproc.Resources{Dirs: []string{runDir, s.dataDir}})
	var log bytes.Buffer
	cmd := exec.Command(binary, "--data-dir", s.dataDir, "--run-dir", runDir, "--api-port", freePort(t),
		"--unsafe-no-fsync", "--log-level", "error")
	cmd.Stderr = &log
	states, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		watch(bufio.NewScanner(states), ready)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself, which Wait reports
		<-ended
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("control plane: %v\n%s", err, log.String())
		}
	})
	waiting, stop := context.WithTimeout(t.Context(), startTimeout)
	defer stop()
	select {
	case <-ready:
	case <-ended:
		require.FailNow(t, "the control plane ended before it was ready")
	case <-waiting.Done():
		require.FailNow(t, "the control plane is not ready", "after %v", startTimeout)
	}
	return s
}

// program is the path of the control plane's binary, in the module that the test runs in.
func program(t testing.TB) string {
	dir, err := os.Getwd()
	require.NoError(t, err)
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	path := filepath.Join(dir, "bin", "berth-controlplane")
	_, err = os.Stat(path)
	require.NoError(t, err, "run make build first")
	return path
}

// watch reads the states that the control plane prints, and closes ready when all of it is. It reads until the end, so
// that the control plane never waits for its reader.
func watch(lines *bufio.Scanner, ready chan struct{}) {
	isReady := false
	for lines.Scan() {
		var event struct{ Component, State string }
		if json.Unmarshal(lines.Bytes(), &event) == nil && !isReady &&
			event.Component == "controlplane" && event.State == "ready" {
			isReady = true
			close(ready)
		}
	}
}

func freePort(t testing.TB) string {
	port, err := freeport.Loopback()
	require.NoError(t, err)
	return strconv.Itoa(port)
}

// Config connects as an identity: Admin, or one of those that a cluster gives its parts, such as "replicaset". It has
// no limit of requests.
func (s *Server) Config(t testing.TB, identity string) *rest.Config {
	t.Helper()
	path := filepath.Join(s.dataDir, "kubeconfigs", identity+".kubeconfig")
	if identity == Admin {
		path = filepath.Join(s.dataDir, "admin.kubeconfig")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	config.QPS = -1
	return config
}

// Client is a client of an identity, see Config. Its connections are closed with the test.
func (s *Server) Client(t testing.TB, identity string) kubernetes.Interface {
	t.Helper()
	config := s.Config(t, identity)
	http, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(http.Transport) })
	client, err := kubernetes.NewForConfigAndClient(config, http)
	require.NoError(t, err)
	return client
}
