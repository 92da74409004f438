package agent

import (
	"context"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/logs"
)

// SetStatic sets the Pods that the node runs beside those of its other sources; config.Decode makes them. A Pod that is
// left out is stopped with its own grace period. Unlike a source named in Config, this one never causes Pods of the runtime
// to be stopped as orphans.
func (a *Agent) SetStatic(pods []*corev1.Pod) { a.pods.sources.static.Replace(callerSource, pods) }

// FollowLog copies the log of one instance of a container, from its beginning to its end. containerID is that of the Pod's
// status.
func (a *Agent) FollowLog(ctx context.Context, uid types.UID, containerID string, stdout, stderr io.Writer) error {
	_, id, _ := strings.Cut(containerID, "://")
	options := logs.Options{Follow: true, Done: a.pods.workers.Ended(uid, id)}
	resp, err := a.runtime.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return fmt.Errorf("find the log of container %q: %w", containerID, err)
	}
	return logs.Read(ctx, resp.Status.LogPath, options, stdout, stderr)
}
