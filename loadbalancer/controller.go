package loadbalancer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/internal/startonce"
	"github.com/berth-dev/berth/reconcile"
)

const (
	// Name is the controller's name in logs, metrics and events.
	Name = "load-balancer"
	// Class is the loadBalancerClass of Services that are this controller's alone. Those without a class are, too.
	Class = "berth.dev/load-balancer"
	// AnnouncedByAnnotation names the node that has the Service's address on its interface.
	AnnouncedByAnnotation = "load-balancer.berth.dev/announced-by"
	// ConditionAssigned is the condition of a Service that says whether it has its addresses.
	ConditionAssigned = "berth.dev/LoadBalancerAssigned"
)

// Reasons of ConditionAssigned and of events.
const (
	ReasonAssigned           = "Assigned"
	ReasonPortTaken          = "PortTaken"
	ReasonAddressUnavailable = "AddressUnavailable"
)

// recheckPeriod is how often a port is checked that a program of the machine has, because its end is no event.
const recheckPeriod = time.Minute

// Deps are the dependencies of a Controller. Client is required.
type Deps struct {
	Client kubernetes.Interface
	// PortOwner names the program of this machine that listens on the port of the address; empty if there is none. Nil: none
	// does.
	PortOwner  func(address netip.Addr, protocol corev1.Protocol, port int32) string
	Logger     *slog.Logger
	Clock      clock.WithTicker
	Registerer prometheus.Registerer
}

// Config is the configuration of a Controller.
type Config struct {
	// CIDR has the addresses of the Services; invalid if they get the nodes' addresses.
	CIDR netip.Prefix
	// FirstNode is the node that announces addresses of CIDR if it can.
	FirstNode string
}

// Controller gives Services their addresses.
type Controller struct {
	deps      Deps
	config    Config
	factory   informers.SharedInformerFactory
	services  corelisters.ServiceLister
	nodes     corelisters.NodeLister
	endpoints *endpoints
	runner    *controller.Controller
	recorder  record.EventRecorder // set by Start before the first run
	once      startonce.Guard
	// held is what Services have; nil before the first run. Only the one worker uses it.
	held holdings
}

var _ reconcile.Reconciler = (*Controller)(nil)

// New returns a Controller, which Start runs.
func New(deps Deps, config Config) (*Controller, error) {
	if deps.Client == nil {
		return nil, errors.New("loadbalancer: Deps.Client is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.PortOwner == nil {
		deps.PortOwner = func(netip.Addr, corev1.Protocol, int32) string { return "" }
	}
	factory := informers.NewSharedInformerFactory(deps.Client, 0)
	services, nodes := factory.Core().V1().Services(), factory.Core().V1().Nodes()
	c := &Controller{
		deps: deps, config: config, factory: factory, services: services.Lister(), nodes: nodes.Lister(),
		endpoints: newEndpoints(informers.NewSharedInformerFactory(deps.Client, 0)),
	}
	var err error
	c.runner, err = controller.New(c, controller.Deps{Logger: deps.Logger, Clock: deps.Clock, Registerer: deps.Registerer},
		controller.Config{Name: Name})
	if err != nil {
		return nil, err
	}
	c.runner.Watch(controller.For(services.Informer()))
	c.runner.Watch(controller.Watches(nodes.Informer(), func(*corev1.Node) []reconcile.Request { return c.ours(func(*corev1.Service) bool { return true }) },
		candidacyChanged))
	c.runner.Watch(c.endpoints)
	return c, nil
}

// Start works until ctx ends. A Controller can be started once.
func (c *Controller) Start(ctx context.Context) error {
	if err := c.once.Begin(Name); err != nil {
		return err
	}
	recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
		Client: c.deps.Client.CoreV1(), Clock: c.deps.Clock, Logger: c.deps.Logger,
	}, eventsink.Config{}, corev1.EventSource{Component: Name})
	if err != nil {
		return fmt.Errorf("start %s: %w", Name, err)
	}
	defer stop()
	c.recorder = recorder
	ctx, cancel := context.WithCancel(ctx)
	defer c.factory.Shutdown()
	defer cancel()
	c.factory.Start(ctx.Done())
	return c.runner.Start(ctx)
}

// Ready returns nil once the caches have synced and the worker runs.
func (c *Controller) Ready() error { return c.runner.Ready() }

// candidacyChanged drops events of Nodes that change no Service: most are heartbeats.
func candidacyChanged(e controller.Event) bool {
	before, ok := e.Old.(*corev1.Node)
	if !ok {
		return true
	}
	after, ok := e.Object.(*corev1.Node)
	_, excludedBefore := before.Labels[corev1.LabelNodeExcludeBalancers]
	_, excludedAfter := after.Labels[corev1.LabelNodeExcludeBalancers]
	return !ok || isReady(before) != isReady(after) || excludedBefore != excludedAfter ||
		!equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses)
}

// isOurs reports whether the Service is this controller's.
func isOurs(service *corev1.Service) bool {
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer && ptr.Deref(service.Spec.LoadBalancerClass, Class) == Class
}

// ours returns the Services of this controller that satisfy.
func (c *Controller) ours(satisfies func(*corev1.Service) bool) []reconcile.Request {
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache has no error
	}
	var keys []reconcile.Request
	for _, service := range all {
		if isOurs(service) && satisfies(service) {
			keys = append(keys, controller.RequestFor(service))
		}
	}
	return keys
}

// load reads what Services have from their statuses, so that none loses its address to one that comes first.
func (c *Controller) load() error {
	if c.held != nil {
		return nil
	}
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list the Services: %w", err)
	}
	c.held = make(holdings)
	for _, service := range all {
		if isOurs(service) && len(service.Status.LoadBalancer.Ingress) > 0 {
			c.held[controller.RequestFor(service)] = holdingOf(service)
		}
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (c *Controller) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	if err := c.load(); err != nil {
		return reconcile.Result{}, err
	}
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	if err != nil || service.DeletionTimestamp != nil || !isOurs(service) {
		c.release(key)
		if err == nil {
			return reconcile.Result{}, ignoreConflict(c.forget(ctx, service))
		}
		return reconcile.Result{}, nil
	}
	wanted, err := c.assign(key, service)
	if errors.Is(err, errNoEndpointsYet) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	before := c.held[key]
	c.held[key] = holding{addresses: wanted.addresses, ports: portsOf(service)}
	// A write that fails is tried again, but then the holding is no longer new.
	if !slices.Equal(before.addresses, wanted.addresses) || !slices.Equal(before.ports, portsOf(service)) {
		c.wakeWaiting(key)
	}
	if err := c.write(ctx, service, wanted); err != nil {
		return reconcile.Result{}, ignoreConflict(err)
	}
	if wanted.problem != nil && wanted.problem.mayEndSilently {
		return reconcile.Result{RequeueAfter: recheckPeriod}, nil
	}
	return reconcile.Result{}, nil
}

// ignoreConflict drops the error of a write to a Service that the cache does not show as it is: its event brings it back.
func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// release forgets what a Service had.
func (c *Controller) release(key reconcile.Request) {
	if _, had := c.held[key]; !had {
		return
	}
	delete(c.held, key)
	c.wakeWaiting(key)
}

// wakeWaiting reconciles the other Services that have no address: one may be free now.
func (c *Controller) wakeWaiting(but reconcile.Request) {
	for _, key := range c.ours(func(service *corev1.Service) bool {
		return len(c.held[controller.RequestFor(service)].addresses) == 0
	}) {
		if key != but {
			c.runner.Enqueue(key)
		}
	}
}

// forget removes what this controller has written to a Service that is no longer its own. The API server itself clears the
// addresses when the type changes.
func (c *Controller) forget(ctx context.Context, service *corev1.Service) error {
	if service.DeletionTimestamp != nil || service.Spec.Type == corev1.ServiceTypeLoadBalancer {
		return nil
	}
	if meta.FindStatusCondition(service.Status.Conditions, ConditionAssigned) != nil {
		changed := service.DeepCopy()
		meta.RemoveStatusCondition(&changed.Status.Conditions, ConditionAssigned)
		if err := c.updateStatus(ctx, changed); err != nil {
			return err
		}
	}
	return c.annotate(ctx, service, "")
}

// write writes the Service's status and annotation if they differ, and records an event of what changed.
func (c *Controller) write(ctx context.Context, service *corev1.Service, wanted assignment) error {
	changed := service.DeepCopy()
	changed.Status.LoadBalancer.Ingress = nil
	for _, address := range wanted.addresses {
		changed.Status.LoadBalancer.Ingress = append(changed.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: address.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
	}
	condition := metav1.Condition{
		Type: ConditionAssigned, Status: metav1.ConditionTrue, Reason: ReasonAssigned,
		Message: fmt.Sprintf("addresses %v", wanted.addresses), ObservedGeneration: service.Generation,
	}
	if wanted.problem != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, wanted.problem.reason, wanted.problem.message
	}
	old := meta.FindStatusCondition(service.Status.Conditions, ConditionAssigned)
	isNew := old == nil || old.Reason != condition.Reason || old.Message != condition.Message
	meta.SetStatusCondition(&changed.Status.Conditions, condition)
	if !equality.Semantic.DeepEqual(service.Status, changed.Status) {
		if err := c.updateStatus(ctx, changed); err != nil {
			return err
		}
	}
	if isNew && wanted.problem != nil {
		c.deps.Logger.Warn("a Service has no address", "service", service.Namespace+"/"+service.Name, "reason", condition.Message)
		c.recorder.Event(service, corev1.EventTypeWarning, condition.Reason, condition.Message)
	} else if isNew {
		c.recorder.Event(service, corev1.EventTypeNormal, condition.Reason, condition.Message)
	}
	return c.annotate(ctx, service, wanted.announcer)
}

func (c *Controller) updateStatus(ctx context.Context, service *corev1.Service) error {
	_, err := c.deps.Client.CoreV1().Services(service.Namespace).UpdateStatus(ctx, service, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of Service %s/%s: %w", service.Namespace, service.Name, err)
	}
	return nil
}

// annotate names the announcing node; empty removes the annotation.
func (c *Controller) annotate(ctx context.Context, service *corev1.Service, node string) error {
	if service.Annotations[AnnouncedByAnnotation] == node {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		AnnouncedByAnnotation: ptr.To(node),
	}}})
	if node == "" {
		patch, err = json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{AnnouncedByAnnotation: nil}}})
	}
	if err != nil {
		return fmt.Errorf("encode the announcing node: %w", err)
	}
	_, err = c.deps.Client.CoreV1().Services(service.Namespace).Patch(ctx, service.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("name the node that announces Service %s/%s: %w", service.Namespace, service.Name, err)
	}
	return nil
}
