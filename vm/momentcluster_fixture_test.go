//go:build vm

package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// momentLimit is how long a step of a cluster on this machine may take.
const momentLimit = 3 * time.Minute

// momentCluster is a cluster on this machine, in namespaces of its own.
type momentCluster struct {
	t     *testing.T
	dir   string
	cmd   *exec.Cmd
	out   tail
	ended chan error
}

// start starts the cluster, and returns when it is ready.
func (c *momentCluster) start() {
	c.t.Helper()
	port, err := freePort()
	require.NoError(c.t, err)
	c.cmd = c.command(context.WithoutCancel(c.t.Context()), "up", "--isolated", "--node-name", "node", "--api-port", strconv.Itoa(port),
		"--eviction-hard", "memory.available<0%,nodefs.available<0%,imagefs.available<0%")
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	require.NoError(c.t, c.cmd.Start())
	c.ended = make(chan error, 1)
	go func(cmd *exec.Cmd) { c.ended <- cmd.Wait() }(c.cmd)
	c.until(func() bool {
		select {
		case err := <-c.ended:
			c.cmd = nil
			require.FailNow(c.t, "the cluster does not start", "%v\n%s", err, &c.out)
		default:
		}
		return strings.Contains(c.out.String(), "is ready after")
	}, func() string { return "the cluster is not ready:\n" + c.out.String() })
}

// stop ends the cluster if it runs.
func (c *momentCluster) stop() {
	c.t.Helper()
	if c.cmd == nil {
		return
	}
	assert.NoError(c.t, c.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-c.ended:
		assert.NoError(c.t, err, &c.out)
	case <-time.After(momentLimit):
		assert.Fail(c.t, "the cluster does not end", &c.out)
		assert.NoError(c.t, c.cmd.Process.Kill())
		<-c.ended
	}
	c.cmd = nil
}

func (c *momentCluster) command(ctx context.Context, command string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(*programs, "berth"), append([]string{"--data-dir", c.dir, command}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Dir(c.dir)) // people's kubeconfig is none of the test's
	return cmd
}

// output runs a command of the cluster.
func (c *momentCluster) output(command string, args ...string) string {
	c.t.Helper()
	out, err := c.command(c.t.Context(), command, args...).CombinedOutput()
	require.NoError(c.t, err, "%s %v: %s", command, args, out)
	return string(out)
}

// create makes the object of a manifest.
func (c *momentCluster) create(manifest string) {
	c.t.Helper()
	cmd := c.command(c.t.Context(), "kubectl", "create", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "create %s: %s", manifest, out)
}

// importImage imports an archive.
func (c *momentCluster) importImage(archive []byte) {
	c.t.Helper()
	cmd := c.command(c.t.Context(), "images", "import", "-")
	cmd.Stdin = bytes.NewReader(archive)
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%s", out)
}

// waitFor runs a command until it succeeds.
func (c *momentCluster) waitFor(command string, args ...string) {
	c.t.Helper()
	var out []byte
	c.until(func() (done bool) {
		var err error
		out, err = c.command(c.t.Context(), command, args...).CombinedOutput()
		return err == nil
	}, func() string {
		pods, _ := c.command(c.t.Context(), "kubectl", "get", "pods,events").CombinedOutput()
		return fmt.Sprintf("%s %v: %s\n%s", command, args, out, pods)
	})
}

// waitEnded waits until the Pod has succeeded.
func (c *momentCluster) waitEnded(pod string) {
	c.t.Helper()
	phase := ""
	c.until(func() bool {
		phase = c.output("kubectl", "get", "pod", pod, "-o", "jsonpath={.status.phase}")
		return phase == "Succeeded" || phase == "Failed"
	}, func() string { return c.output("explain", "pod", pod) })
	if phase == "Failed" {
		require.FailNow(c.t, "pod "+pod+" has failed", "%s\n%s", c.output("kubectl", "logs", pod), c.output("explain", "pod", pod))
	}
}

// until asks until it is so.
func (c *momentCluster) until(done func() bool, otherwise func() string) {
	c.t.Helper()
	deadline := time.After(momentLimit)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-deadline:
			require.FailNow(c.t, "it takes too long", otherwise())
		}
	}
}
