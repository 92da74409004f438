package csi

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/mounts"
)

// Name is the plugin's name.
const Name = "kubernetes.io/csi"

// Tokens gives tokens of Pods' service accounts (see kubelet/token).
type Tokens interface {
	Token(ctx context.Context, pod *corev1.Pod, want *corev1.ServiceAccountTokenProjection) (string, error)
}

// Config is the values that a Plugin runs with.
type Config struct {
	// RootDir is the node agent's root: the plugin keeps what belongs to devices in RootDir/plugins/kubernetes.io/csi.
	RootDir string
	// NodeName is this node's name.
	NodeName string
}

// Deps is what a Plugin needs. Full, Mounter and Logger may be nil.
type Deps struct {
	// Client reads CSIDrivers, VolumeAttachments and Secrets.
	Client  kubernetes.Interface
	Drivers *Drivers
	Tokens  Tokens
	// OnLimitExceeded is told of a driver that has no room on this node for one more volume, so that it is asked for its limit
	// again. It must return soon. Nil tells nobody.
	OnLimitExceeded func(driver string)
	Mounter         mounts.Mounter
	Logger          *slog.Logger
}

// Plugin is the volume plugin. It is safe for concurrent use. Start must run for its calls to go on.
type Plugin struct {
	config     Config
	deps       Deps
	csiDrivers *csiDriverStore
	pinner     *blockpin.Pinner

	mu              sync.Mutex                   // guards attachments
	publishContexts map[string]map[string]string // by device, what its attacher told of it
}

var (
	_ volume.Attachable        = (*Plugin)(nil)
	_ volume.AttachErrorReader = (*Plugin)(nil)
	_ volume.BlockMapper       = (*Plugin)(nil)
	_ volume.Remounter         = (*Plugin)(nil)
	_ volume.Expander          = (*Plugin)(nil)
	_ volume.StatsProvider     = (*Plugin)(nil)
)

// New makes the plugin.
func New(config Config, deps Deps) *Plugin {
	if deps.Mounter == nil {
		deps.Mounter = mounts.Syscalls{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Plugin{
		config: config, deps: deps, csiDrivers: newCSIDriverStore(deps.Client, deps.Drivers.notify),
		pinner: blockpin.New(blockpin.Deps{Mounter: deps.Mounter}), publishContexts: make(map[string]map[string]string),
	}
}

// Start follows the CSIDriver objects until ctx ends. Subscribers of Drivers are told of their changes too.
func (p *Plugin) Start(ctx context.Context) error { return p.csiDrivers.start(ctx) }

// Name implements volume.Plugin.
func (p *Plugin) Name() string { return Name }

// CanSupport implements volume.Plugin.
func (p *Plugin) CanSupport(spec volume.Spec) bool {
	if spec.PV != nil {
		return spec.PV.Spec.CSI != nil
	}
	return spec.Volume != nil && spec.Volume.CSI != nil
}

// Repeats implements volume.Repeater: a volume whose driver wants to be called again and again does.
func (p *Plugin) RequiresRemount(ctx context.Context, spec volume.Spec) bool {
	source, err := sourceOf(spec, "")
	if err != nil {
		return false
	}
	object, err := p.csiDrivers.get(ctx, source.driver)
	return err == nil && requiresRepublish(object)
}

// dir is where the plugin keeps what belongs to devices.
func (p *Plugin) dir() string { return filepath.Join(p.config.RootDir, "plugins", Name) }

// source is what a volume's own fields say, whichever kind of volume it is.
type source struct {
	name           string // of the PersistentVolume, or of the volume in the Pod
	driver, handle string
	ephemeral      bool
	block          bool
	readOnly       bool
	fsType         string
	attributes     map[string]string
	mountOptions   []string
	accessMode     corev1.PersistentVolumeAccessMode // empty for an ephemeral volume

	publishSecret, stageSecret, expandSecret *corev1.SecretReference
}

// sourceOf reads the source of a volume. The handle of an ephemeral one is made of the Pod's UID.
func sourceOf(spec volume.Spec, podUID string) (*source, error) {
	s := &source{name: spec.DirName()}
	switch {
	case spec.PV != nil && spec.PV.Spec.CSI != nil:
		pv := &spec.PV.Spec
		s.driver, s.handle, s.block = pv.CSI.Driver, pv.CSI.VolumeHandle, spec.IsBlock()
		s.readOnly, s.fsType, s.attributes = pv.CSI.ReadOnly, pv.CSI.FSType, pv.CSI.VolumeAttributes
		s.mountOptions = pv.MountOptions
		s.publishSecret, s.stageSecret = pv.CSI.NodePublishSecretRef, pv.CSI.NodeStageSecretRef
		s.expandSecret = pv.CSI.NodeExpandSecretRef
		s.accessMode = corev1.ReadWriteOnce
		if len(pv.AccessModes) > 0 {
			s.accessMode = pv.AccessModes[0]
		}
	case spec.PV == nil && spec.Volume != nil && spec.Volume.CSI != nil:
		inline := spec.Volume.CSI
		s.driver, s.handle, s.ephemeral = inline.Driver, ephemeralHandle(podUID, spec.Name), true
		s.readOnly = inline.ReadOnly != nil && *inline.ReadOnly
		if inline.FSType != nil {
			s.fsType = *inline.FSType
		}
		s.attributes = inline.VolumeAttributes
		if ref := inline.NodePublishSecretRef; ref != nil {
			s.publishSecret = &corev1.SecretReference{Name: ref.Name} // in the Pod's namespace
		}
	default:
		return nil, fmt.Errorf("read csi source of volume %q: it has none", spec.Name)
	}
	if err := CheckDriverName(s.driver); err != nil {
		return nil, fmt.Errorf("volume %q: %w", s.name, err)
	}
	if s.handle == "" {
		return nil, fmt.Errorf("read csi source of volume %q: its volumeHandle is empty", s.name)
	}
	if err := volume.CheckDirName(s.name); err != nil {
		return nil, err
	}
	return s, nil
}
