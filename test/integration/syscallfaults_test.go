//go:build integration

package integration

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/faulttest"
	"github.com/berth-dev/berth/volume/mounts"
)

// faultyPod is a Pod that writes to its volumes, and ends.
const faultyPod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "faulty", "annotations": {"a": "b"}}, "spec": {"restartPolicy": "Never", "hostUsers": false,
	"terminationGracePeriodSeconds": 1, "securityContext": {"fsGroup": 1234},
	"volumes": [{"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
		{"name": "about", "downwardAPI": {"items": [{"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]}}],
	"containers": [%s]}}`

// TestSystemCallsOfAPodMayFail runs a Pod with volumes by a kubelet whose system calls on its own files and mounts fail, one in each run, from
// the start of the kubelet over the Pod's volumes and containers to their removal. Each run succeeds or says why not, the next one succeeds,
// and nothing is left.
func TestSystemCallsOfAPodMayFail(t *testing.T) {
	t.Parallel() // it waits most of the time
	dir := shortDir(t)
	node := newTestNode(t, dir)
	r := &faultyRun{t: t, node: node, root: filepath.Join(dir, "run"), manifest: filepath.Join(dir, "pod.json")}
	mount := `"name": "main", "volumeMounts": [{"name": "disk", "mountPath": "/disk", "subPath": "sub/path"}, {"name": "memory", "mountPath": "/memory"}, {"name": "about", "mountPath": "/about"}]`
	script := "echo kept > /disk/file && echo kept > /memory/file && cat /disk/file /memory/file /about/annotations && echo done"
	require.NoError(t, os.WriteFile(r.manifest, fmt.Appendf(nil, faultyPod, shell(script, mount)), 0o600))
	reference := &faulttest.Injector{}
	require.False(t, r.run(t, reference))
	require.Greater(t, len(reference.Calls()), 50)
	faulttest.Sweep(t, reference.Calls(), faulttest.Thin(60), r.run) // each takes two seconds
}

type faultyRun struct {
	t        *testing.T
	node     *testNode
	root     string
	manifest string
}

// run runs the Pod with a fault, and once more if that failed.
func (r *faultyRun) run(t *testing.T, in *faulttest.Injector) (failed bool) {
	t.Helper()
	in.Dirs = []string{r.root}
	out, err := r.once(t, in)
	if err != nil || !strings.Contains(out, "done") {
		failed = true
		require.NotEmpty(t, in.Injected(), "%v: %s", err, out)
		require.Error(t, err, "%s: it claims to have succeeded: %s", in.Injected(), out)
		require.Contains(t, out, "berth: ", "%s: it says what failed", in.Injected())
		t.Logf("%s: %s", in.Injected(), out)
		out, err = r.once(t, &faulttest.Injector{})
		require.NoError(t, err, "the run after %s: %s", in.Injected(), out)
		require.Contains(t, out, "done", "the run after %s", in.Injected())
	}
	left, err := mounts.ListBelow(r.root)
	require.NoError(t, err)
	require.Empty(t, left, "mounts after %s", in.Injected())
	require.Empty(t, glob(filepath.Join(r.root, "pods", "*")), "files after %s", in.Injected())
	for _, dir := range glob("/proc/[0-9]*") {
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may end meanwhile
		require.NotContains(t, string(command), "cat /about/annotations", "a process after %s", in.Injected())
	}
	return failed
}

// once runs the Pod once and returns what was printed.
func (r *faultyRun) once(t *testing.T, in *faulttest.Injector) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(berthBinary(t), "run", "-f", r.manifest, "--root-dir", r.root, "--container-runtime-endpoint", "unix://"+r.node.runtime.Socket())
	cmd.Env, cmd.Stdout, cmd.Stderr = os.Environ(), &out, &out
	require.NoError(t, in.Start(cmd))
	defer time.AfterFunc(waitTimeout, func() { _ = cmd.Process.Kill() }).Stop()
	err := cmd.Wait()
	return out.String(), err
}

// startStep thins out the faults of TestSystemCallsOfAStartMayFail, of which each takes ten seconds.
var startStep = flag.Int("start-fault-step", 0, "inject one of so many faults into the first start of a cluster; 0: none (make syscall-faults)")

// TestSystemCallsOfAStartMayFail makes a new cluster while a system call on its own files fails, one in each run. It starts and stops, or says why not;
// then the next start succeeds, in the same directory, and what was acknowledged is there after another one.
func TestSystemCallsOfAStartMayFail(t *testing.T) {
	if *startStep == 0 {
		t.Skip("make syscall-faults runs it")
	}
	c := newCluster(t)
	run := func(t *testing.T, in *faulttest.Injector) (failed bool) {
		c.t = t
		t.Cleanup(func() {
			if t.Failed() {
				c.endFailed()
			}
		})
		require.NoError(t, os.RemoveAll(c.dataDir))
		in.Dirs = []string{filepath.Join(c.dataDir, ".cluster.json"), filepath.Join(c.dataDir, "cluster.json"), c.runDir()}
		for _, name := range []string{"pki", "kubeconfigs", "kubelet", "disks", "cni", "admin.kubeconfig", ".admin.kubeconfig", "controlplane.json", ".controlplane.json"} {
			in.Dirs = append(in.Dirs, filepath.Join(c.dataDir, name))
		}
		if err := c.startInjected(t, in); err != nil {
			failed = true
			require.NotEmpty(t, in.Injected(), "%v: %s", err, c.out)
			require.NotEmpty(t, strings.TrimSpace(c.out.String()), "it says why it does not start, after %s", in.Injected())
			t.Logf("%s: %s", in.Injected(), c.out)
			c.up("--unsafe-no-fsync")
		}
		c.mustRun("kubectl", "create", "secret", "generic", "kept", "--from-literal=value=kept")
		if err := c.interrupt(); err != nil { // the fault came as late as that
			require.NotEmpty(t, in.Injected(), "%v: %s", err, c.out)
			require.Contains(t, c.out.String(), "\nberth: ", "it says why it does not end with 0, after %s", in.Injected())
			t.Logf("%s: %s", in.Injected(), c.out)
			failed = true
		}
		c.up("--unsafe-no-fsync")
		require.Equal(t, "kept", c.mustRun("kubectl", "get", "secret", "kept", "-o", "go-template={{.data.value | base64decode}}"), in.Injected())
		c.stop()
		require.Empty(t, c.leftovers(), in.Injected())
		return failed
	}
	reference := &faulttest.Injector{}
	require.False(t, run(t, reference))
	faulttest.Sweep(t, reference.Calls(), *startStep, run)
	c.t = t
}

// startInjected starts the cluster under an injector, and returns an error if it ends.
func (c *cluster) startInjected(t *testing.T, in *faulttest.Injector) error {
	t.Helper()
	c.out = newOutput()
	c.cmd = exec.Command(c.berth, append(append([]string{"up"}, c.args...), "--unsafe-no-fsync")...)
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = os.Environ(), c.out, c.out
	require.NoError(t, in.Start(c.cmd))
	c.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan<- error) { ended <- cmd.Wait(); close(ended) }(c.cmd, c.ended)
	var ended error
	require.NoError(t, c.poll(func(context.Context) bool {
		select {
		case err := <-c.ended:
			ended, c.cmd = fmt.Errorf("it ended: %w", cmp.Or(err, errors.New("with 0"))), nil
			return true
		default:
			return strings.Contains(c.out.String(), "is ready after")
		}
	}), "the start does not end, after %s:\n%s", in.Injected(), c.out)
	return ended
}
