package pleg

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestAlreadySeenEvents: an event may be dropped only if everything that it reports was read already. Each of these is
// about a Pod whose sandbox is ready and whose container is as given.
func TestAlreadySeenEvents(t *testing.T) {
	const (
		created = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
		started = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
		stopped = runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT
		deleted = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT

		made    = runtimeapi.ContainerState_CONTAINER_CREATED
		running = runtimeapi.ContainerState_CONTAINER_RUNNING
		exited  = runtimeapi.ContainerState_CONTAINER_EXITED
	)
	for name, c := range map[string]struct {
		read  runtimeapi.ContainerState // of the container, when its Pod was read
		kind  runtimeapi.ContainerEventType
		about string                    // "box" or "ctr"
		says  runtimeapi.ContainerState // of the container
		down  bool                      // the event says that the sandbox is not ready
		known bool
	}{
		"made, and read":                  {read: made, kind: created, about: "ctr", says: made, known: true},
		"started, and read":               {read: running, kind: started, about: "ctr", says: running, known: true},
		"made, and read when it ran":      {read: running, kind: created, about: "ctr", says: made, known: true},
		"ended, and read":                 {read: exited, kind: stopped, about: "ctr", says: exited, known: true},
		"sandbox started, and read":       {read: running, kind: started, about: "box", says: running, known: true},
		"started since":                   {read: made, kind: started, about: "ctr", says: running},
		"started, with an older status":   {read: made, kind: started, about: "ctr", says: made},
		"ended since":                     {read: running, kind: stopped, about: "ctr", says: exited},
		"ended, with an older status":     {read: running, kind: stopped, about: "ctr", says: running},
		"another container ended as well": {read: running, kind: started, about: "box", says: exited},
		"sandbox ended since":             {read: exited, kind: stopped, about: "box", says: exited, down: true},
		"sandbox ended, older status":     {read: exited, kind: stopped, about: "box", says: exited},
		"removed":                         {read: exited, kind: deleted, about: "ctr", says: exited},
		"of another container":            {read: running, kind: created, about: "new", says: running},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Watcher{unread: map[types.UID][]observation{}, fingerprints: map[types.UID]fingerprint{
				"uid": {"box": int32(runtimeapi.PodSandboxState_SANDBOX_READY), "ctr": int32(c.read) + containerOffset},
			}}
			event := &runtimeapi.ContainerEventResponse{
				ContainerId: c.about, ContainerEventType: c.kind,
				PodSandboxStatus:   &runtimeapi.PodSandboxStatus{Id: "box"},
				ContainersStatuses: []*runtimeapi.ContainerStatus{{Id: "ctr", State: c.says}},
			}
			if c.down {
				event.PodSandboxStatus.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
			}
			if c.about == "new" {
				event.ContainersStatuses = append(event.ContainersStatuses, &runtimeapi.ContainerStatus{Id: "new"})
			}
			require.Equal(t, c.known, w.alreadySeen("uid", event))
			require.False(t, w.alreadySeen("another", event), "nothing was read of it")
		})
	}
}
