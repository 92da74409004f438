package node_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/node"
)

func TestLinuxMachine(t *testing.T) {
	root := t.TempDir()
	for path, content := range map[string]string{
		"proc/meminfo":                   "MemTotal:       1024 kB\nMemAvailable:    999 kB\nMemFree: 500 kB\nInactive(file): 12 kB\nSReclaimable: 88 kB\nSwapTotal:  0 kB\n",
		"proc/loadavg":                   "0.1 0.2 0.3 2/345 9999\n",
		"proc/sys/kernel/pid_max":        "32768\n",
		"proc/sys/kernel/threads-max":    "1000\n",
		"proc/sys/kernel/random/boot_id": "b-o-o-t\n",
		"proc/sys/kernel/osrelease":      "6.1.0\n",
		"etc/machine-id":                 "abc\n",
		"etc/os-release":                 "NAME=x\nPRETTY_NAME=\"Debian 12\"\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3\n",
		"sys/devices/system/cpu/online":                         "0-1022,1024\n",
	} {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	m := node.NewLinuxMachine(root, root)
	info, err := m.Info()
	require.NoError(t, err)
	require.Equal(t, node.MachineInfo{
		Cores:  1024, // whether or not the test may run on them
		Memory: 1 << 20, HugePages: map[int64]int64{2 << 20: 6 << 20},
		MachineID: "abc", SystemUUID: "abc", BootID: "b-o-o-t", Kernel: "6.1.0", OSImage: "Debian 12",
	}, info)
	usage, err := m.Usage()
	require.NoError(t, err)
	require.EqualValues(t, 600<<10, usage.MemoryAvailable, "the kernel's caches of names and inodes give way to programs, too")
	require.EqualValues(t, 1000, usage.PIDCapacity)
	require.EqualValues(t, 345, usage.PIDs)
	require.Positive(t, usage.DiskCapacity)
	require.LessOrEqual(t, usage.DiskFree, usage.DiskCapacity)
}

func TestLinuxMachineErrors(t *testing.T) {
	_, err := node.NewLinuxMachine(t.TempDir(), "/").Info()
	require.ErrorContains(t, err, "read memory size")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = node.NewLinuxMachine("/", filepath.Join(file, "below")).Usage()
	require.ErrorContains(t, err, "stat file system")
}

func TestUsageOfDirectoryYetToBeMade(t *testing.T) {
	dir := t.TempDir()
	want, err := node.NewLinuxMachine("/", dir).Usage()
	require.NoError(t, err)
	got, err := node.NewLinuxMachine("/", filepath.Join(dir, "not", "yet")).Usage()
	require.NoError(t, err)
	require.Equal(t, want.DiskCapacity, got.DiskCapacity)
}

func TestThisMachine(t *testing.T) {
	m := node.NewLinuxMachine("/", t.TempDir())
	info, err := m.Info()
	require.NoError(t, err)
	require.NotEmpty(t, info.BootID)
	usage, err := m.Usage()
	require.NoError(t, err)
	require.Positive(t, usage.MemoryAvailable)
}
