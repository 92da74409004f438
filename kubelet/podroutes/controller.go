package podroutes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/reconcile"
)

// Name is the controller's name in logs and events.
const Name = "pod-routes"

const (
	// ReasonCreated and ReasonFailed are the reasons of the condition NetworkUnavailable, and ReasonFailed that of the event.
	ReasonCreated = "PodRoutesCreated"
	ReasonFailed  = "PodRouteFailed"
)

// Deps are the dependencies of a Controller. The clients are required.
type Deps struct {
	// Client reads all Nodes and writes events, which a node's own identity must not. NodeClient has that identity: it writes
	// the status of the own Node.
	Client, NodeClient kubernetes.Interface
	Logger             *slog.Logger
	Clock              clock.WithTicker

	kernel kernel // of tests
}

// Config is the configuration of a Controller.
type Config struct {
	// NodeName is the node of this machine, PodCIDRs the range of all nodes' Pods, one for each family. Both are required.
	NodeName string
	PodCIDRs []netip.Prefix
	// Joined is set on a node that joined the cluster, which is unavailable if it reaches no other node.
	Joined bool
	// ForeignNetwork is set on a node whose Pod network is not Berth's: whether it is available is for others to say.
	ForeignNetwork bool
}

// Controller keeps the routes of one machine.
type Controller struct {
	deps     Deps
	config   Config
	factory  informers.SharedInformerFactory
	nodes    corelisters.NodeLister
	runner   *controller.TypedController[struct{}]
	recorder record.EventRecorder // set by Start before the first run
	// reported has the nodes without a route, with the message of the last event; only the one worker uses it.
	reported map[string]string
}

// New returns a Controller, which Start runs.
func New(deps Deps, config Config) (*Controller, error) {
	switch {
	case deps.Client == nil || deps.NodeClient == nil:
		return nil, errors.New("podroutes: Deps.Client and Deps.NodeClient are required")
	case config.NodeName == "" || len(config.PodCIDRs) == 0:
		return nil, errors.New("podroutes: Config.NodeName and Config.PodCIDRs are required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.kernel == nil {
		deps.kernel = machine{}
	}
	c := &Controller{
		deps: deps, config: config, factory: informers.NewSharedInformerFactory(deps.Client, 0), reported: make(map[string]string),
	}
	nodes := c.factory.Core().V1().Nodes()
	c.nodes = nodes.Lister()
	var err error
	c.runner, err = controller.NewTyped[struct{}](reconcile.TypedFunc[struct{}](c.reconcile),
		controller.Deps{Logger: deps.Logger, Clock: deps.Clock}, controller.Config{Name: Name})
	if err != nil {
		return nil, err
	}
	c.runner.Watch(controller.Watches(nodes.Informer(), func(*corev1.Node) []struct{} { return []struct{}{{}} }, waysChanged))
	return c, nil
}

// Start keeps the routes until ctx ends. They stay after that: Pods that run on need them.
func (c *Controller) Start(ctx context.Context) error {
	recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
		Client: c.deps.Client.CoreV1(), Clock: c.deps.Clock, Logger: c.deps.Logger,
	}, eventsink.Config{}, corev1.EventSource{Component: Name, Host: c.config.NodeName})
	if err != nil {
		return fmt.Errorf("start %s: %w", Name, err)
	}
	defer stop()
	c.recorder = recorder
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer contain.Recover("podroutes.watch", "")
		if err := c.deps.kernel.watch(ctx, func() { c.runner.Enqueue(struct{}{}) }); err != nil {
			c.deps.Logger.Error("failed to watch the machine's routes; those that others remove stay away until a Node changes", "error", err)
		}
	}()
	defer func() {
		cancel()
		c.factory.Shutdown()
		<-watched
	}()
	c.factory.Start(ctx.Done())
	return c.runner.Start(ctx)
}

// Ready returns nil once the routes of the first list of Nodes are in work.
func (c *Controller) Ready() error { return c.runner.Ready() }

// waysChanged drops events of Nodes that change no route: most are heartbeats.
func waysChanged(e controller.Event) bool {
	before, ok := e.Old.(*corev1.Node)
	if !ok {
		return true
	}
	after, ok := e.Object.(*corev1.Node)
	return !ok || !slices.Equal(podCIDRs(before), podCIDRs(after)) || before.UID != after.UID ||
		!equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses) ||
		!equality.Semantic.DeepEqual(networkCondition(before), networkCondition(after))
}

// reconcile brings the machine's routes to what the Nodes require.
func (c *Controller) reconcile(ctx context.Context, _ struct{}) (reconcile.Result, error) {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("list the nodes: %w", err)
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	wanted, reached, unreachable, err := c.wanted(nodes)
	if err != nil {
		return reconcile.Result{}, err
	}
	var existing []route
	for _, within := range c.config.PodCIDRs {
		some, err := c.deps.kernel.routes(within)
		if err != nil {
			return reconcile.Result{}, err
		}
		existing = append(existing, some...)
	}
	var errs []error
	for _, one := range existing {
		if !slices.Contains(wanted, one) {
			if !slices.ContainsFunc(wanted, func(r route) bool { return r.pods == one.pods }) {
				c.deps.Logger.Info("removing the route to the Pods of a node", "pods", one.pods, "via", one.via)
			}
			errs = append(errs, c.deps.kernel.remove(one))
		}
	}
	for _, one := range wanted {
		if !slices.Contains(existing, one) {
			c.deps.Logger.Info("adding the route to the Pods of a node", "pods", one.pods, "via", one.via)
			errs = append(errs, c.deps.kernel.replace(one))
		}
	}
	c.report(nodes, unreachable)
	return reconcile.Result{}, errors.Join(append(errs, c.setCondition(ctx, nodes, reached, unreachable))...)
}

// wanted returns the routes to the Pods of the other nodes, to how many nodes they lead, and why there is none to a node.
func (c *Controller) wanted(nodes []*corev1.Node) (routes []route, reached int, unreachable map[string]string, err error) {
	unreachable = make(map[string]string)
	for _, node := range nodes {
		if node.Name == c.config.NodeName {
			continue
		}
		before := len(routes)
		var reasons []string
		for _, text := range podCIDRs(node) {
			one, reason, err := c.routeTo(node, text)
			if err != nil {
				return nil, 0, nil, err
			}
			if reason != "" {
				reasons = append(reasons, reason)
			} else if one.via.IsValid() {
				routes = append(routes, one)
			}
		}
		if len(reasons) > 0 {
			unreachable[node.Name] = strings.Join(reasons, "; ")
		}
		if len(routes) > before {
			reached++
		}
	}
	return routes, reached, unreachable, nil
}

// routeTo returns the route to one range of a node's Pods, or the reason why there can be none. It returns neither while the kubelet
// of the node has not reported an address, which is an event.
func (c *Controller) routeTo(node *corev1.Node, text string) (_ route, reason string, err error) {
	pods, err := netip.ParsePrefix(text)
	if err != nil || !slices.ContainsFunc(c.config.PodCIDRs, func(all netip.Prefix) bool {
		return all.Overlaps(pods) && pods.Bits() >= all.Bits()
	}) {
		return route{}, fmt.Sprintf("its Pods' range %s is not a part of the cluster's %s", text, joinPrefixes(c.config.PodCIDRs)), nil
	}
	via := addressOf(node, pods.Addr().Is4())
	if !via.IsValid() {
		if pods.Addr().Is6() && addressOf(node, true).IsValid() {
			return route{}, fmt.Sprintf("it has no IPv6 address for the way to %s (berth up --api-address IPV4,IPV6, berth node --node-ip IPV4,IPV6)",
				pods), nil
		}
		return route{}, "", nil
	}
	link, err := c.deps.kernel.link(via)
	if errors.Is(err, errNotOnLink) {
		advice := "(berth up --api-address, berth node --node-ip)"
		if via.Is6() {
			advice = "(berth up --api-address IPV4,IPV6, berth node --node-ip IPV4,IPV6)"
		}
		return route{}, fmt.Sprintf("its address %s is not on a link of node %s: both machines must be in one network %s", via,
			c.config.NodeName, advice), nil
	}
	return route{pods: pods, via: via, link: link}, "", err
}

// podCIDRs returns the ranges of a node's Pods.
func podCIDRs(node *corev1.Node) []string {
	if len(node.Spec.PodCIDRs) == 0 && node.Spec.PodCIDR != "" {
		return []string{node.Spec.PodCIDR}
	}
	return node.Spec.PodCIDRs
}

func joinPrefixes(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, prefix := range prefixes {
		texts[i] = prefix.String()
	}
	return strings.Join(texts, ",")
}

// addressOf returns the node's address of a family; invalid if it has none.
func addressOf(node *corev1.Node, is4 bool) netip.Addr {
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(address.Address); err == nil && ip.Is4() == is4 {
			return ip
		}
	}
	return netip.Addr{}
}

// report records an event on each Node that has become unreachable.
func (c *Controller) report(nodes []*corev1.Node, unreachable map[string]string) {
	for _, node := range nodes {
		reason, failed := unreachable[node.Name]
		if !failed {
			delete(c.reported, node.Name)
			continue
		}
		if c.reported[node.Name] == reason {
			continue
		}
		c.reported[node.Name] = reason
		c.deps.Logger.Warn("no route to the Pods of a node", "node", node.Name, "reason", reason)
		c.recorder.Eventf(node, corev1.EventTypeWarning, ReasonFailed, "no route to its Pods from node %s: %s", c.config.NodeName, reason)
	}
	for name := range c.reported {
		if !slices.ContainsFunc(nodes, func(node *corev1.Node) bool { return node.Name == name }) {
			delete(c.reported, name)
		}
	}
}

// setCondition writes the condition NetworkUnavailable of this node if it differs.
func (c *Controller) setCondition(ctx context.Context, nodes []*corev1.Node, routes int, unreachable map[string]string) error {
	at := slices.IndexFunc(nodes, func(node *corev1.Node) bool { return node.Name == c.config.NodeName })
	if at < 0 || c.config.ForeignNetwork { // the registration of the Node is an event
		return nil
	}
	condition := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: ReasonCreated,
		Message: fmt.Sprintf("routes to the Pods of %d other nodes", routes),
	}
	if len(unreachable) > 0 {
		names := make([]string, 0, len(unreachable))
		for name, reason := range unreachable {
			names = append(names, name+" ("+reason+")")
		}
		slices.Sort(names)
		condition.Reason, condition.Message = ReasonFailed, "no route to the Pods of "+strings.Join(names, ", ")
		if c.config.Joined && routes == 0 {
			condition.Status = corev1.ConditionTrue
		}
	}
	if !c.config.Joined && len(nodes) == 1 && networkCondition(nodes[at]) == nil {
		return nil // a cluster of one machine needs none
	}
	now := metav1.NewTime(c.deps.Clock.Now())
	condition.LastHeartbeatTime, condition.LastTransitionTime = now, now
	if old := networkCondition(nodes[at]); old != nil {
		if old.Status == condition.Status && old.Reason == condition.Reason && old.Message == condition.Message {
			return nil
		}
		if old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		return fmt.Errorf("encode the condition %s: %w", condition.Type, err)
	}
	_, err = c.deps.NodeClient.CoreV1().Nodes().Patch(ctx, c.config.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("set the condition %s of node %s: %w", condition.Type, c.config.NodeName, err)
	}
	return nil
}

func networkCondition(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeNetworkUnavailable {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}
