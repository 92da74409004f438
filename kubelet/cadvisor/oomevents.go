package cadvisor

import (
	"context"

	v1 "github.com/google/cadvisor/info/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// RecordOOMKills records an event of the node for each process that the kernel kills because the machine, and not a cgroup
// alone, is out of memory. It returns when ctx ends.
func RecordOOMKills(ctx context.Context, machine Interface, recorder record.EventRecorder, node *corev1.ObjectReference) error {
	return machine.WatchOOM(ctx, func(name string, killed v1.OomKillEventData) {
		if name == "/" { // others have reached a limit of their own
			recorder.Eventf(node, corev1.EventTypeWarning, "SystemOOM",
				"System OOM encountered, victim process: %s, pid: %d", killed.ProcessName, killed.Pid)
		}
	})
}
