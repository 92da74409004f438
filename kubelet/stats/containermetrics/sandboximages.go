package containermetrics

import (
	"context"
	"encoding/json"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxImages has the images of sandboxes. Dashboards select by the label image what belongs to a Pod, also for the network, which is that of
// the sandbox. It is safe for concurrent use.
type sandboxImages struct {
	mu    sync.Mutex        // guards known
	known map[string]string // by the sandbox's id; an image does not change
}

// read returns the images of the sandboxes by their ids, as the runtime has them in the details of a sandbox. It forgets those of others.
func (s *sandboxImages) read(ctx context.Context, e *Exporter, sandboxes []*runtimeapi.PodSandbox) map[string]string {
	s.mu.Lock()
	before := s.known
	s.mu.Unlock()
	found := make(map[string]string, len(sandboxes))
	for _, sandbox := range sandboxes {
		if image, ok := before[sandbox.Id]; ok {
			found[sandbox.Id] = image
			continue
		}
		response, err := e.deps.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox.Id, Verbose: true})
		if err != nil {
			e.deps.Logger.Debug("could not read image of sandbox; omitting it", "sandbox", sandbox.Id, "error", err)
			continue
		}
		found[sandbox.Id] = sandboxImage(response.Info["info"])
	}
	s.mu.Lock()
	s.known = found
	s.mu.Unlock()
	return found
}

// sandboxImage returns the image in the details of a sandbox, which are the runtime's own and may have none.
func sandboxImage(details string) string {
	var info struct {
		Image string `json:"image"`
	}
	if json.Unmarshal([]byte(details), &info) != nil {
		return ""
	}
	return info.Image
}
