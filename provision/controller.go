package provision

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/uuid"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// ProvisionController provisions PersistentVolumes for PersistentVolumeClaims and deletes the storage
// of released ones. Make it with New or NewProvisionController; it runs once.
type ProvisionController struct {
	client          kubernetes.Interface
	provisionerName string
	provisioner     Provisioner
	// identity tells this process from others in leader election and as the source of events.
	identity string
	settings settings
	metrics  *metrics
	// started is set when Run is entered, from then on options are refused; running when work starts.
	started, running atomic.Bool
}

// New makes a controller for the claims whose StorageClass names provisionerName (or one of the
// AdditionalProvisionerNames). Options are applied in order; the first error ends construction. Nothing
// runs and nothing is read or written before Run or RunContext.
func New(
	client kubernetes.Interface, provisionerName string, provisioner Provisioner,
	options ...func(*ProvisionController) error,
) (*ProvisionController, error) {
	switch {
	case client == nil:
		return nil, errors.New("make provision controller: client is nil")
	case provisionerName == "":
		return nil, errors.New("make provision controller: provisioner name is empty")
	case provisioner == nil:
		return nil, fmt.Errorf("make provision controller %q: provisioner is nil", provisionerName)
	}
	c := &ProvisionController{
		client:          client,
		provisionerName: provisionerName,
		provisioner:     provisioner,
		identity:        newIdentity(),
		settings:        defaultSettings(),
	}
	for _, option := range options {
		if err := option(c); err != nil {
			return nil, fmt.Errorf("make provision controller %q: %w", provisionerName, err)
		}
	}
	if err := c.settings.complete(provisionerName); err != nil {
		return nil, fmt.Errorf("make provision controller %q: %w", provisionerName, err)
	}
	if !c.settings.clientLimit {
		c.client = unthrottled(client)
	}
	c.metrics = newMetrics()
	if reg := c.settings.registerer; reg != nil {
		if err := c.metrics.register(reg); err != nil {
			return nil, fmt.Errorf("make provision controller %q: register metrics: %w", provisionerName, err)
		}
	}
	return c, nil
}

// NewProvisionController is New for code written for the interface's first version: it panics with a
// clear text where New returns an error, and wants the cluster's version, which must be a semantic
// version ("v1.36.3") but changes nothing: every version that still lives is served the same way.
func NewProvisionController(
	client kubernetes.Interface, provisionerName string, provisioner Provisioner, kubeVersion string,
	options ...func(*ProvisionController) error,
) *ProvisionController {
	if _, err := utilversion.ParseSemantic(kubeVersion); err != nil {
		panic(fmt.Sprintf("make provision controller %q: parse Kubernetes version %q: %v",
			provisionerName, kubeVersion, err))
	}
	c, err := New(client, provisionerName, provisioner, options...)
	if err != nil {
		panic(err.Error())
	}
	return c
}

// HasRun returns whether the controller's work has begun: with leader election, whether it has ever led.
func (ctrl *ProvisionController) HasRun() bool {
	return ctrl.running.Load()
}

// Run does RunContext's work until the channel is closed (a nil channel is never closed) and logs its
// error.
func (ctrl *ProvisionController) Run(stop <-chan struct{}) {
	ctx := wait.ContextForChannel(stop)
	if err := ctrl.RunContext(ctx); err != nil {
		ctrl.settings.logger.Error("provision controller ended", "provisioner", ctrl.provisionerName, "error", err)
	}
}

// MetricsGatherer returns the controller's metrics, for a process that serves its own metrics page. Every
// controller has a registry of its own.
func (ctrl *ProvisionController) MetricsGatherer() prometheus.Gatherer {
	return ctrl.metrics.registry
}

// serves returns whether claims and classes of this provisioner name are ours.
func (ctrl *ProvisionController) serves(name string) bool {
	if name == ctrl.provisionerName {
		return true
	}
	for _, additional := range ctrl.settings.additionalNames {
		if name == additional {
			return true
		}
	}
	return false
}

func newIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "_" + string(uuid.NewUUID())
}

// leaseName is the provisioner's name as an object name.
func leaseName(provisionerName string) string {
	return strings.ReplaceAll(provisionerName, "/", "-")
}

func discardLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }
