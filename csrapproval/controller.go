package csrapproval

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	certificatelisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/startonce"
	"github.com/berth-dev/berth/reconcile"
)

// Name is the controller's name in logs and metrics.
const Name = "csr-approver"

// approvalReason is the reason of the condition Approved.
const approvalReason = "BerthNodeApprove"

// Deps are the dependencies of a Controller. Client is required.
type Deps struct {
	Client     kubernetes.Interface
	Logger     *slog.Logger
	Clock      clock.WithTicker
	Registerer prometheus.Registerer
}

// Config configures a Controller.
type Config struct {
	// Services are the networks of Services, whose addresses are no node's: the API server has one of them.
	Services []netip.Prefix
}

// Controller approves requests.
type Controller struct {
	deps     Deps
	config   Config
	factory  informers.SharedInformerFactory
	requests certificatelisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
	runner   *controller.Controller
	once     startonce.Guard
}

var _ reconcile.Reconciler = (*Controller)(nil)

// New returns a Controller, which Start runs.
func New(deps Deps, config Config) (*Controller, error) {
	if deps.Client == nil {
		return nil, errors.New("csrapproval: Deps.Client is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	factory := informers.NewSharedInformerFactory(deps.Client, 0)
	requests, nodes := factory.Certificates().V1().CertificateSigningRequests(), factory.Core().V1().Nodes()
	c := &Controller{deps: deps, config: config, factory: factory, requests: requests.Lister(), nodes: nodes.Lister()}
	var err error
	c.runner, err = controller.New(c, controller.Deps{Logger: deps.Logger, Clock: deps.Clock, Registerer: deps.Registerer},
		controller.Config{Name: Name})
	if err != nil {
		return nil, err
	}
	c.runner.Watch(controller.For(requests.Informer()))
	c.runner.Watch(controller.Watches(nodes.Informer(), func(*corev1.Node) []reconcile.Request { return c.pending() }, addressesChanged))
	return c, nil
}

// Start approves requests until ctx ends.
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

// Ready returns nil once the caches have synced and the worker runs.
func (c *Controller) Ready() error { return c.runner.Ready() }

// addressesChanged drops events of Nodes that change no answer to a request: most are heartbeats.
func addressesChanged(e controller.Event) bool {
	before, ok := e.Old.(*corev1.Node)
	if !ok {
		return true
	}
	after, ok := e.Object.(*corev1.Node)
	return !ok || !equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses)
}

// pending returns the requests that wait for a decision.
func (c *Controller) pending() []reconcile.Request {
	all, err := c.requests.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache has no error
	}
	var keys []reconcile.Request
	for _, request := range all {
		if isPending(request) {
			keys = append(keys, controller.RequestFor(request))
		}
	}
	return keys
}

// Reconcile implements reconcile.Reconciler.
func (c *Controller) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	request, err := c.requests.Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && !isPending(request) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	name, _ := requester(request)
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return reconcile.Result{}, err
	}
	at := slices.IndexFunc(nodes, func(node *corev1.Node) bool { return node.Name == name })
	if at < 0 {
		return reconcile.Result{}, nil // the Node's registration is an event
	}
	node := nodes[at]
	if err := check(request, node, slices.Delete(slices.Clone(nodes), at, at+1), c.config.Services); err != nil {
		c.deps.Logger.Info("certificate signing request is left to the administrator", "request", request.Name, "node", name, "reason", err.Error())
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, c.approve(ctx, request, name)
}

func (c *Controller) approve(ctx context.Context, request *certificatesv1.CertificateSigningRequest, node string) error {
	approved := request.DeepCopy()
	approved.Status.Conditions = append(approved.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: approvalReason,
		Message: "berth up approves what its nodes need to serve and to forward to Services",
	})
	_, err := c.deps.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, request.Name, approved, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the cache is behind; the event of what it does not show yet brings the request back
	}
	if err != nil {
		return fmt.Errorf("approve certificate signing request %s of node %s: %w", request.Name, node, err)
	}
	c.deps.Logger.Info("approved certificate signing request", "request", request.Name, "node", node, "signer", request.Spec.SignerName)
	return nil
}
