package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/provision"
)

// DefaultTimeout is the default of Config.Timeout. A call that takes longer is repeated.
const DefaultTimeout = time.Minute

// Deps are what the provisioner works with.
type Deps struct {
	// Client reads Secrets, CSINodes, Nodes, the claims and volumes that are cloned, VolumeAttributesClasses and
	// VolumeAttachments, and patches the finalizers of claims that are cloned. Required.
	Client kubernetes.Interface
	// Dynamic reads VolumeSnapshots and their contents. Nil: claims with a snapshot as source are rejected.
	Dynamic dynamic.Interface
	// Logger; nil discards. No request and no secret is ever logged.
	Logger *slog.Logger
}

// Config is how a Provisioner works.
type Config struct {
	// Name is the driver's name, which is the provisioner of its StorageClasses. It must be the name that the driver reports.
	// Required.
	Name string
	// Socket is the driver's unix socket, as an absolute path, unix:/path or unix:///path. It need not exist yet.
	// Required.
	Socket string
	// Timeout is how long one call to the driver may take, the wait for a connection included; zero means
	// DefaultTimeout.
	Timeout time.Duration
	// ExtraCreateMetadata adds the claim's name and namespace and the volume's name to the parameters of CreateVolume.
	ExtraCreateMetadata bool
	// DefaultFSType is the file system type of volumes whose class names none; "" leaves it to the driver.
	DefaultFSType string
	// StrictTopology gives the driver only the topology of the selected node, if there is one. By default it gets the others of its
	// nodes, or of the class, too, which volumes that span several need, and that one as the preferred one. With NodeName it is
	// always so.
	StrictTopology bool
	// NodeName, in a cluster where a driver with a controller service runs on each node, is this driver's node: the
	// Provisioner provisions the claims that are scheduled to the node, and deletes the volumes that are on it. Its
	// controller needs a provision.IntentFinalizer of its own. Empty: one Provisioner works for all nodes.
	NodeName string
	// NeedsNode, with NodeName, is called with each claim that no node is selected for, and each time such a claim changes. It must not
	// block. Nil: claims wait until something selects their node.
	NeedsNode func(claim *corev1.PersistentVolumeClaim)
}

func (c *Config) complete() error {
	c.Socket = strings.TrimPrefix(strings.TrimPrefix(c.Socket, "unix:"), "//")
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	switch {
	case c.Name == "":
		return errors.New("csi: Config.Name is required")
	case !filepath.IsAbs(c.Socket):
		return fmt.Errorf("csi: Config.Socket %q is not the absolute path of a unix socket", c.Socket)
	case c.Timeout < 0:
		return fmt.Errorf("csi: Config.Timeout %v is negative", c.Timeout)
	}
	c.Socket = filepath.Clean(c.Socket) // as the events on it name it
	return nil
}

// Provisioner provisions and deletes volumes with one driver. It is safe for concurrent use.
//
// It has many methods because all controllers of a driver (provision, resize, capacity, snapshots, health) share its connection
// and its capabilities, and each has an interface of its own for what it needs.
type Provisioner struct {
	client  kubernetes.Interface
	dynamic dynamic.Interface
	config  Config
	logger  *slog.Logger
	driver  *driver
	// attached holds the driver's VolumeAttachments while they are watched; attachmentLister lists them.
	attached         *attachments
	attachmentLister *attachmentLister
	// waits has the claims whose source is not ready.
	waits *sourceWaits
	// clones has the claims that are being cloned.
	clones *cloneSources
	mu     sync.Mutex // guards pending
	// pending has, by volume, the requests without a final result. They are repeated unchanged: another request might make
	// the driver return AlreadyExists.
	pending map[string]*plan
}

var (
	_ provision.Provisioner        = (*Provisioner)(nil)
	_ provision.ProvisionerContext = (*Provisioner)(nil)
	_ provision.DeleterContext     = (*Provisioner)(nil)
	_ provision.DeletionGuard      = (*Provisioner)(nil)
	_ provision.DeletionNotifier   = (*Provisioner)(nil)
	_ provision.ClaimNotifier      = (*Provisioner)(nil)
	_ provision.Qualifier          = (*Provisioner)(nil)
	_ provision.BlockProvisioner   = (*Provisioner)(nil)
)

// New returns a Provisioner. It connects to nothing before Start or the first call.
func New(deps Deps, config Config) (*Provisioner, error) {
	if deps.Client == nil {
		return nil, errors.New("csi: Deps.Client is required")
	}
	if err := config.complete(); err != nil {
		return nil, err
	}
	logger := deps.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	logger = logger.With("driver", config.Name)
	return &Provisioner{
		client: deps.Client, dynamic: deps.Dynamic, config: config, logger: logger,
		driver: newDriver(config, logger), attached: newAttachments(), attachmentLister: newAttachmentLister(deps.Client, config.Name),
		waits: newSourceWaits(), clones: newCloneSources(), pending: map[string]*plan{},
	}, nil
}

// Start keeps the connection to the driver until ctx ends, and then closes it; calls fail after that. It returns an error if
// the driver on the socket has another name than Config.Name. Calls may be made before Start.
func (p *Provisioner) Start(ctx context.Context) error { return p.driver.start(ctx) }

// SupportsBlock implements provision.BlockProvisioner. A driver that does not support block volumes rejects the call.
func (p *Provisioner) SupportsBlock() bool { return true }

// Provision implements provision.Provisioner for callers without a context. It uses the context of Start, and fails before
// Start. The controller calls ProvisionContext instead.
func (p *Provisioner) Provision(options provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	ctx, err := p.driver.context()
	if err != nil {
		return nil, err
	}
	volume, _, err := p.ProvisionContext(ctx, options)
	return volume, err
}

// Delete implements provision.Provisioner as Provision does. The controller calls DeleteContext instead.
func (p *Provisioner) Delete(volume *corev1.PersistentVolume) error {
	ctx, err := p.driver.context()
	if err != nil {
		return err
	}
	return p.DeleteContext(ctx, volume)
}
