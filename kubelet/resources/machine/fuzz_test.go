package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// FuzzRead reads arbitrary files of the kernel about CPUs and NUMA nodes: each CPU that is online is in a core of one that is, on a socket, and
// the nodes are sorted.
func FuzzRead(f *testing.F) {
	f.Add("0-1", "0", "0-1", "0-1", "Node 0 MemTotal: 1000 kB", "10 20", "3")
	f.Add("0-9999999999", "-1", "0-8191", "", "MemTotal: 18446744073709551615 kB", "10", "-1")
	f.Add("1", "9223372036854775807", "0,1", "5", "MemTotal:", "-1", "")
	f.Fuzz(func(t *testing.T, online, socket, siblings, list, memory, distance, pages string) {
		root := t.TempDir()
		write(t, root, map[string]string{
			"devices/system/cpu/online":                             online,
			"devices/system/cpu/cpu1/topology/physical_package_id":  socket,
			"devices/system/cpu/cpu1/topology/thread_siblings_list": siblings,
			"devices/system/cpu/cpu1/cache/index3/level":            "3", "devices/system/cpu/cpu1/cache/index3/shared_cpu_list": siblings,
			"devices/system/cpu/cpu1/cache/index3/id": socket,
			"devices/system/node/node0/cpulist":       list, "devices/system/node/node0/meminfo": memory,
			"devices/system/node/node0/distance":                                distance,
			"devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": pages,
		})
		count := machine.CountCPUs(machine.Config{SysFS: root})
		require.Positive(t, count)
		require.LessOrEqual(t, count, 8192)
		found, err := machine.Read(machine.Config{SysFS: root, ProcFS: root})
		if err != nil {
			require.ErrorContains(t, err, "read the machine's topology: ")
			return
		}
		require.LessOrEqual(t, len(found.CPUs), 8192)
		for id, cpu := range found.CPUs {
			require.Contains(t, found.CPUs, cpu.Core)
			require.LessOrEqual(t, cpu.Core, id)
			require.GreaterOrEqual(t, cpu.Socket, 0)
		}
		require.Len(t, found.Nodes, 1)
		for _, node := range found.Nodes {
			for _, kind := range node.Pages {
				require.LessOrEqual(t, kind.Count, uint64(1)<<62, "a negative number")
			}
		}
		require.GreaterOrEqual(t, found.ThreadsPerCore(), 1)
		require.Equal(t, len(found.CPUs), found.All().Size())
	})
}
