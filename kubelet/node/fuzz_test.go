package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/node"
)

// FuzzMachine reads arbitrary files of the kernel and of the distribution: no size is negative, and the name of the system is one line.
func FuzzMachine(f *testing.F) {
	f.Add("MemTotal:       1024 kB\nMemFree: 500 kB\nInactive(file): 12 kB\nSReclaimable: 88 kB\nSwapTotal:  0 kB\n", "PRETTY_NAME=\"Debian 12\"\n",
		"0-3,8", "3", "0.1 0.2 0.3 2/345 9999\n")
	f.Add("MemTotal: 9223372036854775807 kB\nMemFree: -1 kB\nSwapTotal: 9007199254740993 kB\n", "NAME=x", "0-4294967295", "-3", "1 2 3 /-4")
	f.Fuzz(func(t *testing.T, memory, release, cpus, number, load string) {
		root := t.TempDir()
		for path, content := range map[string]string{
			"proc/meminfo": memory, "proc/loadavg": load, "proc/sys/kernel/pid_max": number, "proc/sys/kernel/threads-max": number,
			"proc/sys/kernel/osrelease": release, "etc/machine-id": number, "etc/os-release": release, "sys/devices/system/cpu/online": cpus,
			"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": number,
		} {
			path = filepath.Join(root, path)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		}
		m := node.NewLinuxMachine(root, root)
		usage, err := m.Usage()
		if err != nil {
			require.ErrorContains(t, err, root)
			return
		}
		info, err := m.Info()
		if err != nil {
			require.ErrorContains(t, err, "huge pages")
			return
		}
		require.Positive(t, info.Memory)
		require.Positive(t, info.Cores)
		require.LessOrEqual(t, info.Cores, 8192)
		for _, size := range []int64{info.Swap, info.HugePages[2<<20], usage.MemoryAvailable, usage.PIDs, usage.PIDCapacity} {
			require.GreaterOrEqual(t, size, int64(0))
		}
		require.NotContains(t, strings.TrimRight(info.OSImage, "\n"), "\n")
	})
}
