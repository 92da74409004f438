package machine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// write writes the files of a tree, each by its path and content.
func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for path, content := range files {
		full := filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		require.NoError(t, os.WriteFile(full, []byte(content+"\n"), 0o600))
	}
}

// twoSockets is what the kernel of a machine shows that has two sockets of two cores of two threads, a NUMA node for each socket,
// and two last-level caches in the second one.
func twoSockets() map[string]string {
	files := map[string]string{"devices/system/cpu/online": "0-7"}
	for cpu := range 8 {
		dir := fmt.Sprintf("devices/system/cpu/cpu%d/", cpu)
		socket, first := cpu%4/2, cpu%4
		files[dir+"topology/physical_package_id"] = fmt.Sprint(socket)
		files[dir+"topology/thread_siblings_list"] = fmt.Sprintf("%d,%d", first, first+4)
		shared, id := "0-1,4-5", 0
		if socket == 1 {
			shared, id = fmt.Sprintf("%d,%d", first, first+4), first
		}
		files[dir+"cache/index0/level"], files[dir+"cache/index0/shared_cpu_list"] = "1", fmt.Sprintf("%d,%d", first, first+4)
		files[dir+"cache/index0/id"] = fmt.Sprint(first)
		files[dir+"cache/index3/level"], files[dir+"cache/index3/shared_cpu_list"] = "3", shared
		files[dir+"cache/index3/id"] = fmt.Sprint(id)
	}
	for node, cpus := range []string{"0-1,4-5", "2-3,6-7"} {
		dir := fmt.Sprintf("devices/system/node/node%d/", node)
		files[dir+"cpulist"] = cpus
		files[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal:       %d kB\nNode %d MemFree:  12 kB", node, 1000*(node+1), node)
		files[dir+"distance"] = []string{"10 20", "20 10"}[node]
		files[dir+"hugepages/hugepages-2048kB/nr_hugepages"] = fmt.Sprint(node * 3)
		files[dir+"hugepages/hugepages-1048576kB/nr_hugepages"] = "1"
	}
	return files
}

func TestReadOfTwoSockets(t *testing.T) {
	root := t.TempDir()
	write(t, root, twoSockets())
	got, err := machine.Read(machine.Config{SysFS: root})
	require.NoError(t, err)
	require.Equal(t, machine.CPU{Core: 1, Socket: 0, Node: 0, Cache: 0}, got.CPUs[5])
	require.Equal(t, machine.CPU{Core: 3, Socket: 1, Node: 1, Cache: 3}, got.CPUs[7])
	require.Equal(t, 2, got.Sockets())
	require.Equal(t, 4, got.Cores())
	require.Equal(t, 2, got.ThreadsPerCore())
	require.Equal(t, 3, got.Caches())
	require.Equal(t, []int{0, 1}, got.NodeIDs())
	require.True(t, got.All().Equals(cpuset.New(0, 1, 2, 3, 4, 5, 6, 7)))
	require.True(t, got.InNodes(1).Equals(cpuset.New(2, 3, 6, 7)))
	require.True(t, got.CoresOf(cpuset.New(0, 6)).Equals(cpuset.New(0, 4, 2, 6)))
	require.Equal(t, machine.Node{
		ID: 1, Memory: 2000 << 10, Distances: []uint64{20, 10},
		Pages: []machine.Pages{{Size: 2 << 20, Count: 3}, {Size: 1 << 30, Count: 1}},
	}, got.Nodes[1])
}

func TestCPUsThatAreOfflineAreLeftOut(t *testing.T) {
	root, files := t.TempDir(), twoSockets()
	files["devices/system/cpu/online"] = "1-7"
	write(t, root, files)
	got, err := machine.Read(machine.Config{SysFS: root})
	require.NoError(t, err)
	require.Len(t, got.CPUs, 7)
	require.Equal(t, 4, got.CPUs[4].Core, "its sibling is offline")
}

func TestReadWithoutNUMANodes(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"sys/devices/system/cpu/online": "0-1", "proc/meminfo": "MemTotal:  100 kB",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "2",
	})
	got, err := machine.Read(machine.Config{SysFS: root + "/sys", ProcFS: root + "/proc"})
	require.NoError(t, err)
	require.Equal(t, []machine.Node{{Memory: 100 << 10, Pages: []machine.Pages{{Size: 2 << 20, Count: 2}}}}, got.Nodes)
	require.Equal(t, map[int]machine.CPU{0: {Core: 0}, 1: {Core: 1}}, got.CPUs)
}

func TestReadNamesTheFileThatIsBad(t *testing.T) {
	for path, content := range map[string]string{
		"devices/system/cpu/online":                             "zero",
		"devices/system/cpu/cpu3/topology/thread_siblings_list": "3-",
		"devices/system/node/node1/meminfo":                     "Node 1 MemFree: 1 kB",
		"devices/system/node/node0/distance":                    "10 far",
	} {
		root, files := t.TempDir(), twoSockets()
		files[path] = content
		write(t, root, files)
		_, err := machine.Read(machine.Config{SysFS: root})
		require.ErrorContains(t, err, filepath.Join(root, path), strings.TrimSpace(content))
	}
}

// TestReadOfThisMachine reads the kernel's own files.
func TestReadOfThisMachine(t *testing.T) {
	got, err := machine.Read(machine.Config{})
	require.NoError(t, err)
	require.NotEmpty(t, got.CPUs)
	require.NotEmpty(t, got.Nodes)
	require.Positive(t, got.Nodes[0].Memory)
}
