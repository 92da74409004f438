package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/timeline"
)

// Deps are what the provisioner works with.
type Deps struct {
	// Events records events on claims. Nil: the recorder of the controller that runs the provisioner.
	Events record.EventRecorder
	// Logger; nil discards.
	Logger *slog.Logger
}

// Config is where the volumes are. Both fields are required.
type Config struct {
	// Root is the absolute path of the directory of the volumes. It is created, accessible to root only, with the first
	// volume.
	Root string
	// NodeName is the node on which this process runs; claims and volumes of other nodes are ignored.
	NodeName string
}

func (c Config) validate() error {
	switch {
	case !filepath.IsAbs(c.Root) || filepath.Clean(c.Root) == "/":
		return fmt.Errorf("local: Config.Root %q is not an absolute path below /", c.Root)
	case c.NodeName == "":
		return errors.New("local: Config.NodeName is required")
	}
	return nil
}

// Provisioner creates and removes directories. It is safe for concurrent use.
type Provisioner struct {
	node   string
	store  *volumeStore
	logger *slog.Logger

	mu     sync.Mutex // guards events
	events record.EventRecorder
}

var (
	_ provision.Provisioner           = (*Provisioner)(nil)
	_ provision.ProvisionerContext    = (*Provisioner)(nil)
	_ provision.DeleterContext        = (*Provisioner)(nil)
	_ provision.Qualifier             = (*Provisioner)(nil)
	_ provision.EventRecorderInjector = (*Provisioner)(nil)
)

// New returns a Provisioner. It accesses no file before the first volume.
func New(deps Deps, config Config) (*Provisioner, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	p := &Provisioner{
		node: config.NodeName, store: &volumeStore{root: filepath.Clean(config.Root)},
		events: deps.Events, logger: deps.Logger,
	}
	if p.logger == nil {
		p.logger = slog.New(slog.DiscardHandler)
	}
	return p, nil
}

// UseEvents implements provision.EventUser.
func (p *Provisioner) InjectEventRecorder(recorder record.EventRecorder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.events == nil {
		p.events = recorder
	}
}

// ShouldProvision implements provision.Qualifier: it skips claims that were scheduled to other nodes.
func (p *Provisioner) ShouldProvision(claim *corev1.PersistentVolumeClaim) bool {
	node := claim.Annotations[volumehelpers.AnnSelectedNode]
	return node == "" || node == p.node
}

// Provision implements provision.Provisioner.
func (p *Provisioner) Provision(options provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	volume, _, err := p.provision(options)
	return volume, err
}

// ProvisionContext implements provision.ProvisionerContext. Creating a directory is too fast to be
// interrupted. An error is final unless the directory exists: then the next call completes it.
func (p *Provisioner) ProvisionContext(
	ctx context.Context, options provision.VolumeOptions,
) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	if err := ctx.Err(); err != nil {
		return nil, provision.ProvisioningNoChange, err
	}
	return p.provision(options)
}

func (p *Provisioner) provision(
	options provision.VolumeOptions,
) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	if options.SelectedNode != nil && options.SelectedNode.Name != p.node {
		return nil, provision.ProvisioningFinished, &provision.IgnoredError{
			Reason: fmt.Sprintf("node %q was selected, this is %q", options.SelectedNode.Name, p.node)}
	}
	if err := validate(options); err != nil {
		return nil, provision.ProvisioningFinished, &provision.InfeasibleError{Err: err}
	}
	size := options.PVC.Spec.Resources.Requests[corev1.ResourceStorage]
	made, err := p.store.create(options.PVName, size.Value())
	if err != nil && made.exists {
		// The directory exists but is not complete; the next call completes it.
		return nil, provision.ProvisioningInBackground, err
	}
	if err != nil {
		return nil, provision.ProvisioningFinished, err
	}
	if made.created && !made.limited {
		p.reportSizeNotEnforced(options.PVC, made.reason)
	}
	return p.volume(options), provision.ProvisioningFinished, nil
}

// validate returns an error for the first field of the claim that a directory does not support.
func validate(options provision.VolumeOptions) error {
	claim := options.PVC
	refuse := func(field, format string, args ...any) error {
		return timeline.WithReason(fmt.Errorf("claim %q: %s: %s",
			claim.Namespace+"/"+claim.Name, field, fmt.Sprintf(format, args...)),
			"", "create the claim again without it, or with a class that supports it (`berth kubectl get storageclass`)")
	}
	switch mode := claim.Spec.VolumeMode; {
	case options.SelectedNode == nil:
		return refuse("spec.storageClassName",
			"the class must have volumeBindingMode WaitForFirstConsumer: a directory is on one node")
	case mode != nil && *mode != corev1.PersistentVolumeFilesystem:
		return refuse("spec.volumeMode", "%s is not supported, only Filesystem", *mode)
	case claim.Spec.Selector != nil:
		return refuse("spec.selector", "not supported for provisioned volumes")
	case claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil:
		return refuse("spec.dataSource", "not supported: a directory starts empty")
	}
	for _, mode := range claim.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return refuse("spec.accessModes", "%s is not supported, only ReadWriteOnce and ReadWriteOncePod", mode)
		}
	}
	for name := range options.Parameters {
		return fmt.Errorf("StorageClass parameter %q is not supported: local directories take none", name)
	}
	return nil
}

func (p *Provisioner) reportSizeNotEnforced(claim *corev1.PersistentVolumeClaim, reason error) {
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	text := fmt.Sprintf("The volume may grow beyond its size of %s: %v", size.String(), reason)
	p.logger.Info("volume size is not enforced", "claim", claim.Namespace+"/"+claim.Name, "reason", reason)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.events != nil {
		p.events.Event(claim, corev1.EventTypeNormal, ReasonSizeNotEnforced, text)
	}
}

func (p *Provisioner) volume(options provision.VolumeOptions) *corev1.PersistentVolume {
	hostname, ok := options.SelectedNode.Labels[corev1.LabelHostname]
	if !ok {
		hostname = options.SelectedNode.Name
	}
	filesystem := corev1.PersistentVolumeFilesystem
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        options.PVName,
			Annotations: map[string]string{AnnNode: p.node},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: options.PersistentVolumeReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: options.PVC.Spec.Resources.Requests[corev1.ResourceStorage],
			},
			VolumeMode:   &filesystem,
			MountOptions: options.MountOptions,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: p.store.path(options.PVName)},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{
						Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hostname},
					}},
				}},
			}},
		},
	}
}

// Delete implements provision.Provisioner.
func (p *Provisioner) Delete(volume *corev1.PersistentVolume) error {
	return p.remove(func() error { return nil }, volume)
}

// DeleteContext implements provision.DeleterContext. The next call resumes a removal that was interrupted.
func (p *Provisioner) DeleteContext(ctx context.Context, volume *corev1.PersistentVolume) error {
	return p.remove(ctx.Err, volume)
}

func (p *Provisioner) remove(interrupted func() error, volume *corev1.PersistentVolume) error {
	if node := volume.Annotations[AnnNode]; node != p.node {
		return &provision.IgnoredError{Reason: fmt.Sprintf("the volume is on node %q, this is %q", node, p.node)}
	}
	if volume.Spec.Local == nil {
		return fmt.Errorf("delete volume %q: spec.local is not set", volume.Name)
	}
	if have, want := filepath.Clean(volume.Spec.Local.Path), p.store.path(volume.Name); have != want {
		return fmt.Errorf("delete volume %q: spec.local.path is %q, not %q: remove the directory manually",
			volume.Name, have, want)
	}
	return p.store.remove(interrupted, volume.Name)
}
