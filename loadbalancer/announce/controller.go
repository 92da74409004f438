package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/startonce"
	"github.com/berth-dev/berth/loadbalancer"
	"github.com/berth-dev/berth/reconcile"
)

// Name is the controller's name in logs.
const Name = "announcer"

// Deps are the dependencies of a Controller. Client and NodeIP are required.
type Deps struct {
	// Client reads Services.
	Client kubernetes.Interface
	// NodeIP returns the node's address: the interface that has it gets the Services' addresses.
	NodeIP func() netip.Addr
	Logger *slog.Logger
	Clock  clock.WithTicker

	links links // of tests
}

// Config is the configuration of a Controller. Both fields are required.
type Config struct {
	NodeName string
	// CIDR is the range of the Services' addresses. No interface has other addresses of it, but for the node's.
	CIDR netip.Prefix
}

// links is what the Controller uses of the machine's network.
type links interface {
	// addresses returns the addresses of the range that interfaces have, each as a network of its own.
	addresses(within netip.Prefix) ([]netip.Addr, error)
	// add adds the address to the interface that has the node's, and announces it to the link.
	add(address, node netip.Addr) error
	remove(address netip.Addr) error
}

// Controller keeps the addresses of one machine.
type Controller struct {
	deps     Deps
	config   Config
	factory  informers.SharedInformerFactory
	services corelisters.ServiceLister
	runner   *controller.TypedController[struct{}]
	once     startonce.Guard
}

// New returns a Controller, which Start runs.
func New(deps Deps, config Config) (*Controller, error) {
	switch {
	case deps.Client == nil || deps.NodeIP == nil:
		return nil, errors.New("announce: Deps.Client and Deps.NodeIP are required")
	case config.NodeName == "" || !config.CIDR.IsValid():
		return nil, errors.New("announce: Config.NodeName and Config.CIDR are required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.links == nil {
		deps.links = machine{}
	}
	factory := informers.NewSharedInformerFactory(deps.Client, 0)
	services := factory.Core().V1().Services()
	c := &Controller{deps: deps, config: config, factory: factory, services: services.Lister()}
	var err error
	c.runner, err = controller.NewTyped[struct{}](reconcile.TypedFunc[struct{}](c.reconcile),
		controller.Deps{Logger: deps.Logger, Clock: deps.Clock}, controller.Config{Name: Name})
	if err != nil {
		return nil, err
	}
	c.runner.Watch(controller.Watches(services.Informer(), func(*corev1.Service) []struct{} { return []struct{}{{}} }, announcementChanged))
	return c, nil
}

// Start keeps the addresses until ctx ends; Remove removes them. A Controller can be started once.
func (c *Controller) Start(ctx context.Context) error {
	if err := c.once.Begin(Name); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer c.factory.Shutdown()
	defer cancel()
	c.factory.Start(ctx.Done())
	return c.runner.Start(ctx)
}

// announcementChanged drops events of Services that change no address.
func announcementChanged(e controller.Event) bool {
	after, ok := e.Object.(*corev1.Service)
	if !ok {
		return true
	}
	before, ok := e.Old.(*corev1.Service)
	if !ok {
		return after.Annotations[loadbalancer.AnnouncedByAnnotation] != "" || e.Initial
	}
	return before.Annotations[loadbalancer.AnnouncedByAnnotation] != after.Annotations[loadbalancer.AnnouncedByAnnotation] ||
		!equality.Semantic.DeepEqual(before.Status.LoadBalancer, after.Status.LoadBalancer)
}

func (c *Controller) reconcile(context.Context, struct{}) (reconcile.Result, error) {
	wanted, err := c.wanted()
	if err != nil {
		return reconcile.Result{}, err
	}
	existing, err := c.deps.links.addresses(c.config.CIDR)
	if err != nil {
		return reconcile.Result{}, err
	}
	node := c.deps.NodeIP()
	wanted, existing = without(wanted, node), without(existing, node)
	var errs []error
	for _, address := range existing {
		if !slices.Contains(wanted, address) {
			c.deps.Logger.Info("removing the address of a Service", "address", address)
			errs = append(errs, c.deps.links.remove(address))
		}
	}
	for _, address := range wanted {
		if !slices.Contains(existing, address) {
			c.deps.Logger.Info("announcing the address of a Service", "address", address)
			errs = append(errs, c.deps.links.add(address, node))
		}
	}
	return reconcile.Result{}, errors.Join(errs...)
}

// without leaves out the node's own address. Clouds give it as a network of its own, as Services' addresses are; without it the
// machine cannot be reached.
func without(addresses []netip.Addr, node netip.Addr) []netip.Addr {
	return slices.DeleteFunc(addresses, func(address netip.Addr) bool { return address == node })
}

// wanted returns the addresses that this node announces.
func (c *Controller) wanted() ([]netip.Addr, error) {
	services, err := c.services.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list the Services: %w", err)
	}
	var wanted []netip.Addr
	for _, service := range services {
		if service.Annotations[loadbalancer.AnnouncedByAnnotation] != c.config.NodeName || service.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			if address, err := netip.ParseAddr(ingress.IP); err == nil && c.config.CIDR.Contains(address) {
				wanted = append(wanted, address)
			}
		}
	}
	slices.SortFunc(wanted, netip.Addr.Compare)
	return slices.Compact(wanted), nil
}
