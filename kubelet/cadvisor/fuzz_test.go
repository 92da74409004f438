package cadvisor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/cadvisor"
)

// FuzzParseOOM has the kernel kill a process of any name, which the container chooses: the cgroup, the process and its name are those that
// the kernel has written.
func FuzzParseOOM(f *testing.F) {
	f.Add("/kubepods/pod1/a", "java", 42, true)
	f.Add("/kubepods/pod1/a", "a,b", 42, true)
	f.Add("/kubepods/pod1/a", "x,pid=1,uid=0", 42, true)
	f.Add("/kubepods/pod1/a", "oom_memcg=/,", 7, false)
	f.Fuzz(func(t *testing.T, cgroup, name string, pid int, limited bool) {
		if pid < 0 || strings.ContainsAny(cgroup, ",\n\x00") || !strings.HasPrefix(cgroup, "/") || len(name) > 15 || strings.ContainsAny(name, "\n\x00") {
			return // the kernel writes no such line
		}
		constraint, reached := "CONSTRAINT_NONE", "global_oom"
		if limited {
			constraint, reached = "CONSTRAINT_MEMCG", "oom_memcg="+cgroup
		}
		message := fmt.Sprintf("oom-kill:constraint=%s,nodemask=(null),cpuset=x,mems_allowed=0,%s,task_memcg=%s/b,task=%s,pid=%d,uid=0\n",
			constraint, reached, cgroup, name, pid)
		group, killed, ok := cadvisor.ParseOOM(message)
		require.True(t, ok, message)
		require.Equal(t, pid, killed.Pid, message)
		require.Equal(t, name, killed.ProcessName, message)
		if !limited {
			cgroup = "/"
		}
		require.Equal(t, cgroup, group, message)
	})
}
