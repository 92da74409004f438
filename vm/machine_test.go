//go:build vm

package vm

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	cache   = flag.String("cache", "../bin/vm", "directory that the built image is kept in")
	release = DefaultRelease
)

func init() {
	flag.Var(&release, "release", "the release of the machines: one of "+Releases())
}

func image(t *testing.T) *Image {
	t.Helper()
	i, err := Build(t.Context(), *cache, release, logger(t), t.Output())
	require.NoError(t, err)
	return i
}

func logger(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// start boots a machine that ends with the test, and shows the end of its console if the test fails.
func start(t *testing.T, options Options) *Machine {
	t.Helper()
	m, err := Start(t.Context(), image(t), t.TempDir(), options, logger(t))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		if console, err := os.ReadFile(m.ConsoleLog()); err == nil && t.Failed() {
			t.Logf("console of %s:\n%s", options.Name, console[max(0, len(console)-4096):])
		}
	})
	return m
}

func output(t *testing.T, m *Machine, script string) string {
	t.Helper()
	out, err := m.Output(t.Context(), script)
	require.NoError(t, err)
	return out
}

func TestMachineRunsCommandsAndKeepsWhatIsSynced(t *testing.T) {
	share := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(share, "tool"), []byte("#!/bin/sh\necho from the host\n"), 0o755))
	m := start(t, Options{
		Name: "one", CPUs: 4, Sockets: 2, Threads: 2, NUMANodes: 2, MemoryMiB: 2048, DisksGiB: []int{1}, Shares: []Share{{Dir: share, Path: "/opt/share"}},
	})
	require.Equal(t, "cgroup2fs", output(t, m, "stat -f -c %T /sys/fs/cgroup"))
	require.Equal(t, "running", output(t, m, "systemctl is-system-running --wait"))
	require.Equal(t, "one 4", output(t, m, "echo $(hostname) $(nproc)"))
	require.Equal(t, "0-1", output(t, m, "cat /sys/devices/system/cpu/cpu0/topology/thread_siblings_list"))
	require.Equal(t, "node0 node1", output(t, m, "cd /sys/devices/system/node; echo node*"))
	require.Equal(t, "1073741824", output(t, m, "blockdev --getsize64 /dev/disk/by-id/virtio-disk1"))
	require.Equal(t, "from the host", output(t, m, "/opt/share/tool"))

	var exit *ExitError
	var out, errs bytes.Buffer
	err := m.Run(t.Context(), "cat; echo problem >&2; exit 7", IO{Stdin: strings.NewReader("input"), Stdout: &out, Stderr: &errs})
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.Code)
	require.Equal(t, "input", out.String())
	require.Equal(t, "problem\n", errs.String())

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	require.ErrorContains(t, m.Run(ctx, "sleep 1000", IO{}), "enough")

	interrupt := make(chan struct{})
	close(interrupt)
	out.Reset()
	require.ErrorAs(t, m.Run(t.Context(), "trap 'echo cleaned up; exit 3' INT; while :; do sleep 1; done",
		IO{Stdout: &out, Interrupt: interrupt}), &exit)
	require.Equal(t, 3, exit.Code)
	require.Equal(t, "cleaned up\n", out.String())

	dir := t.TempDir()
	require.NoError(t, m.CopyTo(t.Context(), share, "/tmp/copy"))
	require.NoError(t, m.CopyFrom(t.Context(), "/tmp/copy/"+filepath.Base(share), dir))
	require.FileExists(t, filepath.Join(dir, filepath.Base(share), "tool"))

	output(t, m, "echo kept > /root/kept; sync; echo lost > /root/lost")
	before := output(t, m, "cat /proc/sys/kernel/random/boot_id; systemctl stop systemd-journald 2>/dev/null; true")
	require.NoError(t, m.PowerCut())
	require.NoError(t, m.Boot(t.Context()))
	require.Equal(t, "kept", output(t, m, "cat /root/kept"))
	require.NotEqual(t, before, output(t, m, "cat /proc/sys/kernel/random/boot_id"))
	require.NoError(t, m.Shutdown(t.Context()))
}

func TestMachinesOfANetworkReachEachOtherAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	network, err := NewNetwork(t.Context(), filepath.Join(dir, "network.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	a := start(t, Options{Name: "a", CPUs: 1, MemoryMiB: 1024, Network: network, Address: "10.0.0.1/24"})
	b := start(t, Options{Name: "b", CPUs: 1, MemoryMiB: 1024, Network: network, Address: "10.0.0.2/24"})
	output(t, b, "mkdir /srv/page && echo hello > /srv/page/text && busybox httpd -p 80 -h /srv/page")
	require.Equal(t, "hello", output(t, a, "busybox wget -q -O - http://10.0.0.2/text"))
	require.NotEqual(t, output(t, a, "cat /etc/machine-id"), output(t, b, "cat /etc/machine-id"))
	require.Error(t, a.Run(t.Context(), "busybox wget -q -T 5 -O - http://10.0.2.2/", IO{}), "the host cannot be reached")
}
