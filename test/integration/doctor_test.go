//go:build integration

package integration

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testnet"
)

const doctorManifest = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], storageClassName: berth-loop, resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: patient, labels: {app: patient}}
spec:
  containers:
  - name: c
    image: berth.local/demo:v1
    volumeMounts: [{name: disk, mountPath: /data}]
  volumes:
  - {name: disk, persistentVolumeClaim: {claimName: disk}}
`

// TestDoctorRepairsKilledCluster kills all of a cluster; the doctor must remove its leftovers and nothing
// else.
func TestDoctorRepairsKilledCluster(t *testing.T) {
	c := newCluster(t)
	c.up()
	c.apply(doctorManifest)
	c.waitPod("app=patient", "ready", isReady)
	require.NotContains(t, c.fixWithDoctor(), c.id(), "a running cluster is not changed")

	c.killAll()
	require.Contains(t, strings.Join(c.leftovers(), "\n"), c.dataDir+"/kubelet/pods", "or there is nothing to fix")
	require.NotEmpty(t, c.hostLeftovers(), "or there is nothing to fix")
	refusal := newCluster(t).refused("--pod-cidr", testnet.Prefix(c.network).String())
	require.Contains(t, refusal, "left behind by the dead cluster "+c.id()+" in "+c.dataDir+": remove it with berth doctor --fix")
	require.Contains(t, c.fixWithDoctor(), "cluster "+c.id(), "it says what it fixes")
	require.Empty(t, c.leftovers())
	require.Empty(t, c.hostLeftovers())
	require.NotContains(t, c.fixWithDoctor(), c.id(), "nothing is left to fix")

	c.up()
	c.waitPod("app=patient", "ready again on its old disk", isReady)
	c.stop()
}

// TestStopWithoutReader is Ctrl-C on `berth up | tee`, which ends tee first.
func TestStopWithoutReader(t *testing.T) {
	c := newCluster(t)
	cmd := exec.CommandContext(t.Context(), c.berth, append([]string{"up"}, c.args...)...)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = write, write
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	lines := bufio.NewScanner(read)
	for lines.Scan() && !strings.Contains(lines.Text(), "is ready after") {
		continue
	}
	require.NoError(t, lines.Err())
	require.NoError(t, read.Close())
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
	require.Empty(t, c.leftovers())
	require.Empty(t, c.hostLeftovers())
}

// fixWithDoctor runs `berth doctor --fix`, confirms its questions about this cluster and no others, and returns those
// questions.
func (c *cluster) fixWithDoctor() string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.berth, "doctor", "--fix")
	stdin, err := cmd.StdinPipe()
	require.NoError(c.t, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, cmd.Start())
	var all, ours, printed strings.Builder
	for text := bufio.NewReader(stderr); err == nil; {
		var char byte
		if char, err = text.ReadByte(); err == nil {
			all.WriteByte(char)
			printed.WriteByte(char)
		}
		if strings.HasSuffix(printed.String(), "[y/N] ") {
			answer := "n\n"
			if strings.Contains("\n"+printed.String(), "\ncluster "+c.id()+": ") {
				ours.WriteString(printed.String())
				answer = "y\n"
			}
			_, err = io.WriteString(stdin, answer)
			printed.Reset()
		}
	}
	require.ErrorIs(c.t, err, io.EOF)
	if err := cmd.Wait(); err != nil { // 1 is its exit code while it finds problems of other clusters
		require.Equal(c.t, 1, cmd.ProcessState.ExitCode(), "berth doctor: %v\n%s", err, &all)
	}
	return ours.String()
}

// hostLeftovers lists what leftovers does not: loop devices and firewall rules.
func (c *cluster) hostLeftovers() []string {
	c.t.Helper()
	rules, err := exec.CommandContext(c.t.Context(), "iptables", "-w", "5", "-t", "nat", "-S").Output()
	require.NoError(c.t, err)
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(c.t, err)
	var left []string
	for line := range strings.Lines(string(rules)) {
		if strings.Contains(line, c.id()) {
			left = append(left, line)
		}
	}
	for _, file := range files {
		if image, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(image), c.dataDir) {
			left = append(left, file)
		}
	}
	return left
}
