package up

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/version"
)

// reportNode prints when the Node is ready, which needs the API server alone, and waits for the rest of the control plane, whose
// failure ends both.
func (c *Cluster) reportNode(ctx context.Context, controlplane *readiness) error {
	if c.isRestart() || c.config.APIOnly {
		return controlplane.wait(ctx)
	}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go contain.Guard("up.followControlplaneFailure", "", func() {
		if err := controlplane.wait(waiting); err != nil {
			cancel(err)
		}
	})()
	c.progress.Starting("node " + c.NodeName)
	if err := c.waitNodeReady(waiting); err != nil {
		if waiting.Err() != nil {
			return context.Cause(waiting)
		}
		return err
	}
	c.progress.Ready("node "+c.NodeName, "")
	return controlplane.wait(ctx)
}

// reportReady waits until the rest of the cluster is ready, and prints what to do next.
func (c *Cluster) reportReady(ctx context.Context) error {
	if c.config.APIOnly {
		c.reportAPIReady()
		return nil
	}
	if c.isRestart() { // reportNode has not waited
		if err := c.waitNodeReady(ctx); err != nil {
			if ctx.Err() == nil {
				c.logger.Warn("failed to wait for the Node", "error", err)
			}
			return nil
		}
	}
	if c.link.Hello.Up {
		c.logAndPrint(nodeProcess + " is ready again")
		c.link.Up(c.readyText())
		return nil
	}
	if c.config.Member != nil {
		c.progress.Printf("\nNode %s of the cluster at %s is ready after %.1f s.\n\n  stop        Ctrl-C\n",
			c.NodeName, c.Server, c.clock.Since(c.startedAt).Seconds())
		c.link.Up(c.readyText())
		return nil
	}
	if err := c.waitServices(ctx); err != nil {
		return err
	}
	seeIt := c.Hint("page")
	if c.page != nil {
		seeIt = c.page.URL()
	}
	nodePorts := ""
	if c.config.Inside != nil {
		nodePorts = fmt.Sprintf("  node ports  on %s\n", c.config.Inside.Address)
	}
	c.progress.Printf("\nKubernetes %s is ready after %.1f s.\n\n  kubeconfig  %s\n%s  try         %s\n  see it      %s\n  stop        Ctrl-C\n",
		version.Kubernetes, c.clock.Since(c.startedAt).Seconds(), c.AdminKubeconfig(), nodePorts, c.Hint("kubectl get pods -A"), seeIt)
	c.link.Up(c.readyText())
	if c.config.Demo {
		c.showDemo(ctx)
	}
	return nil
}

// reportAPIReady is reportReady for a cluster without a node.
func (c *Cluster) reportAPIReady() {
	if !c.link.Hello.Up {
		c.progress.Printf("\nThe API server of Kubernetes %s is ready after %.1f s, without a node.\n\n  kubeconfig  %s\n  stop        Ctrl-C\n",
			version.Kubernetes, c.clock.Since(c.startedAt).Seconds(), c.AdminKubeconfig())
	}
	c.link.Up(c.readyText())
}

// readyText describes the cluster to the service manager.
func (c *Cluster) readyText() string {
	if c.config.Member != nil {
		return "node " + c.NodeName + " of the cluster at " + c.Server
	}
	return "Kubernetes " + version.Kubernetes + ", kubeconfig " + c.AdminKubeconfig()
}

// waitNodeReady waits until the kubelet of this process has reported the Node as ready.
func (c *Cluster) waitNodeReady(ctx context.Context) error {
	client, err := c.nodeClient()
	if err != nil {
		return err
	}
	one := fields.OneTermEqualSelector("metadata.name", c.NodeName)
	source := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", one)
	fresh := freshReady{since: c.processStartedAt}
	_, err = watchtools.UntilWithSync(ctx, source, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		node, ok := event.Object.(*corev1.Node)
		return ok && fresh.isSaidBy(node), nil
	})
	if err != nil {
		return fmt.Errorf("wait for node %s to become ready (see %s): %w", c.NodeName, c.Log("berth"), err)
	}
	return nil
}

// freshReady recognizes that a Node is ready now: the data of a cluster that did not stop in order, or was copied, say that of the past.
type freshReady struct {
	since time.Time
	// stale is the time of what was said before since, or what a clock says that was set back since then.
	stale time.Time
}

// isSaidBy is called with each state of the Node. Times of conditions have no fraction of a second.
func (f *freshReady) isSaidBy(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		at := condition.LastHeartbeatTime.Time
		if at.Before(f.since.Truncate(time.Second)) && (f.stale.IsZero() || at.Equal(f.stale)) {
			f.stale = at
			return false
		}
		return condition.Status == corev1.ConditionTrue
	}
	return false
}
