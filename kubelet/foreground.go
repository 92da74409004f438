package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/logs"
)

// SetStatic says which Pods the node is to run beside those of its other sources, all of them; config.Decode makes
// them. A Pod that is left out is ended with its own grace. Unlike a source named in Config, this one never makes the
// node agent end what else the runtime holds.
func (k *Kubelet) SetStatic(pods []*corev1.Pod) { k.sources.pods.Replace(callerSource, pods) }

// callerSource is the name of SetStatic among the sources.
const callerSource = config.SourceFile + " of the caller"

// FollowLog copies what one instance of a container writes, from its beginning to its end. containerID is as it
// stands in the Pod's status.
func (k *Kubelet) FollowLog(ctx context.Context, uid types.UID, containerID string, stdout, stderr io.Writer) error {
	_, id, _ := strings.Cut(containerID, "://")
	options := logs.Options{Follow: true, Done: k.workers.Ended(uid, id)}
	resp, err := k.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return fmt.Errorf("find log of container %q: %w", containerID, err)
	}
	return logs.Read(ctx, resp.Status.LogPath, options, stdout, stderr)
}

// Clear kills what still runs in control groups below Config.CgroupRoot, removes these, and takes volumes below
// Config.RootDir off. It is called when Start has returned and no Pod of this node agent is to run on.
func (k *Kubelet) Clear(ctx context.Context) error {
	return errors.Join(k.cgroups.RemoveRoot(ctx), k.volumes.UnmountAll(ctx))
}
