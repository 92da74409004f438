package csi

import (
	"context"
	"errors"
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

// Tokens requests tokens of Pods' service accounts (see kubelet/token).
type Tokens interface {
	Token(ctx context.Context, pod *corev1.Pod, want *corev1.ServiceAccountTokenProjection) (string, error)
}

// Config holds the settings of a Plugin. Both are required.
type Config struct {
	// RootDir is the kubelet's root directory. The plugin keeps the files of devices in
	// RootDir/plugins/kubernetes.io/csi.
	RootDir string
	// NodeName is this node's name.
	NodeName string
}

// Deps holds what a Plugin uses. Client, Drivers and Tokens are required.
type Deps struct {
	// Client reads CSIDrivers, VolumeAttachments and Secrets.
	Client  kubernetes.Interface
	Drivers *Drivers
	Tokens  Tokens
	// OnLimitExceeded, if not nil, is called when this node cannot have one more volume of the driver, so that the
	// driver's limit is read again. It must not block.
	OnLimitExceeded func(driver string)
	// Mounter defaults to system calls, Logger to no log.
	Mounter mounts.Mounter
	Logger  *slog.Logger
}

func (d *Deps) complete() error {
	switch {
	case d.Client == nil:
		return errors.New("csi: Deps.Client is required")
	case d.Drivers == nil:
		return errors.New("csi: Deps.Drivers is required")
	case d.Tokens == nil:
		return errors.New("csi: Deps.Tokens is required")
	}
	if d.Mounter == nil {
		d.Mounter = mounts.Syscalls{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func (c Config) validate() error {
	switch {
	case c.RootDir == "":
		return errors.New("csi: Config.RootDir is required")
	case c.NodeName == "":
		return errors.New("csi: Config.NodeName is required")
	}
	return nil
}

// Plugin is the volume plugin. It is safe for concurrent use. Its calls block until Start has listed the CSIDrivers.
//
// It has many methods because it implements every interface of package volume, for file systems and for block volumes.
type Plugin struct {
	config     Config
	deps       Deps
	csiDrivers *csiDriverStore
	pinner     *blockpin.Pinner

	mu              sync.Mutex                   // guards publishContexts
	publishContexts map[string]map[string]string // by device, from its VolumeAttachment
}

var (
	_ volume.Attachable        = (*Plugin)(nil)
	_ volume.AttachErrorReader = (*Plugin)(nil)
	_ volume.BlockMapper       = (*Plugin)(nil)
	_ volume.Remounter         = (*Plugin)(nil)
	_ volume.Expander          = (*Plugin)(nil)
	_ volume.StatsProvider     = (*Plugin)(nil)
	_ volume.SELinuxMounter    = (*Plugin)(nil)
)

// New returns the plugin. It starts nothing.
func New(deps Deps, config Config) (*Plugin, error) {
	if err := deps.complete(); err != nil {
		return nil, err
	}
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Plugin{
		config: config, deps: deps, csiDrivers: newCSIDriverStore(deps.Client, deps.Drivers.notify),
		pinner: blockpin.New(blockpin.Deps{Mounter: deps.Mounter}), publishContexts: make(map[string]map[string]string),
	}, nil
}

// Start watches the CSIDriver objects until ctx ends, and notifies the subscribers of Drivers about their changes.
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

// RequiresRemount implements volume.Remounter, as requiresRepublish of the volume's CSIDriver says.
func (p *Plugin) RequiresRemount(ctx context.Context, spec volume.Spec) bool {
	source, err := sourceOf(spec, "")
	if err != nil {
		return false
	}
	object, err := p.csiDrivers.get(ctx, source.driver)
	return err == nil && requiresRepublish(object)
}

// dir is the directory of the files that belong to devices.
func (p *Plugin) dir() string { return filepath.Join(p.config.RootDir, "plugins", Name) }

// source holds the fields of a volume's source, for persistent and inline volumes alike.
type source struct {
	name           string // of the PersistentVolume, or of the volume in the Pod
	driver, handle string
	ephemeral      bool
	block          bool
	readOnly       bool
	fsType         string
	attributes     map[string]string
	mountOptions   []string
	accessMode     corev1.PersistentVolumeAccessMode

	publishSecret, stageSecret, expandSecret *corev1.SecretReference
}

// sourceOf reads the source of a volume. The handle of an inline volume is derived from the Pod's UID.
func sourceOf(spec volume.Spec, podUID string) (*source, error) {
	s := &source{name: spec.DirName(), accessMode: corev1.ReadWriteOnce} // an inline volume is of one Pod
	switch {
	case spec.PV != nil && spec.PV.Spec.CSI != nil:
		pv := &spec.PV.Spec
		s.driver, s.handle, s.block = pv.CSI.Driver, pv.CSI.VolumeHandle, spec.IsBlock()
		s.readOnly, s.fsType, s.attributes = pv.CSI.ReadOnly, pv.CSI.FSType, pv.CSI.VolumeAttributes
		s.mountOptions = pv.MountOptions
		s.publishSecret, s.stageSecret = pv.CSI.NodePublishSecretRef, pv.CSI.NodeStageSecretRef
		s.expandSecret = pv.CSI.NodeExpandSecretRef
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
