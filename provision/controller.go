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

	"github.com/berth-dev/berth/controller/leader"
)

// ProvisionController provisions PersistentVolumes for PersistentVolumeClaims and deletes the storage of released ones.
// Create it with New and run it, once, with RunContext.
type ProvisionController struct {
	client          kubernetes.Interface
	provisionerName string
	provisioner     Provisioner
	// identity is this process's in leader election and as the source of events.
	identity string
	settings settings
	metrics  *metrics
	// started is set when Run is called, after which options are refused; running is set when the work begins.
	started, running atomic.Bool
	// synced is set while the caches are complete and the workers run.
	synced atomic.Bool
	// retryNow is set while the workers run.
	retryNow atomic.Pointer[func()]
	// elector is set once RunContext takes part in the leader election.
	elector atomic.Pointer[leader.Elector]
}

// New returns a controller for the claims whose StorageClass names provisionerName, or one of the
// AdditionalProvisionerNames. It applies the options in order and returns the first error. It starts nothing: RunContext
// runs the controller.
func New(
	client kubernetes.Interface, provisionerName string, provisioner Provisioner,
	options ...Option,
) (*ProvisionController, error) {
	switch {
	case client == nil:
		return nil, errors.New("create provision controller: client is nil")
	case provisionerName == "":
		return nil, errors.New("create provision controller: provisioner name is empty")
	case provisioner == nil:
		return nil, fmt.Errorf("create provision controller %q: provisioner is nil", provisionerName)
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
			return nil, fmt.Errorf("create provision controller %q: %w", provisionerName, err)
		}
	}
	if err := c.settings.complete(provisionerName); err != nil {
		return nil, fmt.Errorf("create provision controller %q: %w", provisionerName, err)
	}
	if !c.settings.clientLimit {
		c.client = unthrottled(client)
	}
	c.metrics = newMetrics()
	if reg := c.settings.registerer; reg != nil {
		if err := c.metrics.register(reg); err != nil {
			return nil, fmt.Errorf("create provision controller %q: register metrics: %w", provisionerName, err)
		}
	}
	return c, nil
}

// NewProvisionController is New for code that was written for sig-storage-lib-external-provisioner: it panics where New
// returns an error, and takes the version of the cluster. That must be a semantic version ("v1.36.3"), and changes nothing:
// all versions of Kubernetes that are supported are served in the same way.
func NewProvisionController(
	client kubernetes.Interface, provisionerName string, provisioner Provisioner, kubeVersion string,
	options ...Option,
) *ProvisionController {
	if _, err := utilversion.ParseSemantic(kubeVersion); err != nil {
		panic(fmt.Sprintf("create provision controller %q: parse Kubernetes version %q: %v",
			provisionerName, kubeVersion, err))
	}
	c, err := New(client, provisionerName, provisioner, options...)
	if err != nil {
		panic(err.Error())
	}
	return c
}

// HasRun returns whether the controller has begun to work: with leader election, whether it has ever led.
func (ctrl *ProvisionController) HasRun() bool {
	return ctrl.running.Load()
}

// Ready returns nil while the controller works with complete caches, or waits for the Lease.
func (ctrl *ProvisionController) Ready() error {
	switch {
	case ctrl.synced.Load(), ctrl.IsWaiting():
		return nil
	case ctrl.running.Load():
		return fmt.Errorf("provision controller %q is not ready: waiting for the initial list of claims, volumes and classes",
			ctrl.provisionerName)
	}
	return fmt.Errorf("provision controller %q is not ready: it is not running", ctrl.provisionerName)
}

// IsWaiting returns whether the controller waits for the Lease, which another process holds.
func (ctrl *ProvisionController) IsWaiting() bool {
	return ctrl.elector.Load() != nil && !ctrl.running.Load()
}

// RetryNow tries all claims and volumes whose last try failed at once, those that were given up included. It is for when
// the storage is back, or was replaced: no backoff knows of that. It does nothing unless the controller works.
func (ctrl *ProvisionController) RetryNow() {
	if retry := ctrl.retryNow.Load(); retry != nil {
		(*retry)()
	}
}

// Run calls RunContext until the channel is closed, and logs its error. A nil channel is never closed.
func (ctrl *ProvisionController) Run(stop <-chan struct{}) {
	ctx := wait.ContextForChannel(stop)
	if err := ctrl.RunContext(ctx); err != nil {
		ctrl.settings.logger.Error("provision controller failed", "provisioner", ctrl.provisionerName, "error", err)
	}
}

// MetricsGatherer returns the controller's metrics, for a process that serves metrics itself. Each controller has a
// registry of its own.
func (ctrl *ProvisionController) MetricsGatherer() prometheus.Gatherer {
	return ctrl.metrics.registry
}

// serves returns whether claims and classes with this provisioner name are ours.
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

// leaseName returns the provisioner's name as the name of an object.
func leaseName(provisionerName string) string {
	return strings.ReplaceAll(provisionerName, "/", "-")
}

func discardLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }
