package projected

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/atomicwriter"
	"github.com/berth-dev/berth/volume/mounts"
)

// The names of the plugins.
const (
	ConfigMapName   = "kubernetes.io/configmap"
	SecretName      = "kubernetes.io/secret"
	DownwardAPIName = "kubernetes.io/downward-api"
	ProjectedName   = "kubernetes.io/projected"
)

// defaultMode is what the API server fills in for a volume that names none.
const defaultMode = 0o644

// Objects gives the objects that volumes are made of. A missing object gives an error for which
// apierrors.IsNotFound is true. The objects are shared: not written to.
type Objects interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
}

// Tokens gives tokens of a Pod's service account, bound to that Pod.
type Tokens interface {
	Token(ctx context.Context, pod *corev1.Pod, projection *corev1.ServiceAccountTokenProjection) (string, error)
}

// Deps is what the plugins need.
type Deps struct {
	Objects Objects
	Tokens  Tokens
	Mounter mounts.Mounter
	// NodeAllocatable is what a container without a limit is told its limit is. Nil is nothing.
	NodeAllocatable func() corev1.ResourceList
	// Clock names the generations of files. Nil is the real clock.
	Clock clock.PassiveClock
}

// Plugin is one of the four volume plugins. It has no state.
type Plugin struct {
	deps     Deps
	name     string
	inMemory bool
	// sources are what the volume projects, nil if it is not of this plugin; mode is that of its files.
	sources func(source *corev1.VolumeSource) (sources []corev1.VolumeProjection, mode *int32)
}

var _ volume.Refresher = (*Plugin)(nil)

// NewConfigMap makes the plugin for configMap volumes.
func NewConfigMap(deps Deps) *Plugin {
	return &Plugin{deps: deps, name: ConfigMapName, sources: configMapSources}
}

// NewSecret makes the plugin for secret volumes.
func NewSecret(deps Deps) *Plugin {
	return &Plugin{deps: deps, name: SecretName, inMemory: true, sources: secretSources}
}

// NewDownwardAPI makes the plugin for downwardAPI volumes.
func NewDownwardAPI(deps Deps) *Plugin {
	return &Plugin{deps: deps, name: DownwardAPIName, inMemory: true, sources: downwardAPISources}
}

// NewProjected makes the plugin for projected volumes.
func NewProjected(deps Deps) *Plugin {
	return &Plugin{deps: deps, name: ProjectedName, inMemory: true, sources: projectedSources}
}

func configMapSources(source *corev1.VolumeSource) ([]corev1.VolumeProjection, *int32) {
	if source.ConfigMap == nil {
		return nil, nil
	}
	return []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{
		LocalObjectReference: source.ConfigMap.LocalObjectReference,
		Items:                source.ConfigMap.Items,
		Optional:             source.ConfigMap.Optional,
	}}}, source.ConfigMap.DefaultMode
}

func secretSources(source *corev1.VolumeSource) ([]corev1.VolumeProjection, *int32) {
	if source.Secret == nil {
		return nil, nil
	}
	return []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: source.Secret.SecretName},
		Items:                source.Secret.Items,
		Optional:             source.Secret.Optional,
	}}}, source.Secret.DefaultMode
}

func downwardAPISources(source *corev1.VolumeSource) ([]corev1.VolumeProjection, *int32) {
	if source.DownwardAPI == nil {
		return nil, nil
	}
	return []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{
		Items: source.DownwardAPI.Items,
	}}}, source.DownwardAPI.DefaultMode
}

func projectedSources(source *corev1.VolumeSource) ([]corev1.VolumeProjection, *int32) {
	if source.Projected == nil {
		return nil, nil
	}
	if source.Projected.Sources == nil {
		return []corev1.VolumeProjection{}, source.Projected.DefaultMode // not nil: it is of this plugin
	}
	return source.Projected.Sources, source.Projected.DefaultMode
}

// Name implements volume.Plugin.
func (p *Plugin) Name() string { return p.name }

// CanSupport implements volume.Plugin.
func (p *Plugin) CanSupport(spec volume.Spec) bool {
	if spec.PV != nil || spec.Volume == nil {
		return false
	}
	sources, _ := p.sources(&spec.Volume.VolumeSource)
	return sources != nil
}

// SetUp implements volume.Plugin. The content is read before anything is made on disk.
func (p *Plugin) SetUp(ctx context.Context, req volume.Request) (volume.Mount, error) {
	sources, mode := p.sources(&req.Spec.Volume.VolumeSource)
	collector := &collector{ctx: ctx, deps: p.deps, req: req, mode: defaultMode, files: make(map[string]atomicwriter.File)}
	if mode != nil {
		collector.mode = *mode
	}
	if err := collector.collect(sources); err != nil {
		return volume.Mount{}, err
	}
	if err := p.prepareDir(req); err != nil {
		return volume.Mount{}, fmt.Errorf("make directory for volume %q: %w", req.Spec.Name, err)
	}
	now := clock.PassiveClock(clock.RealClock{})
	if p.deps.Clock != nil {
		now = p.deps.Clock
	}
	_, err := atomicwriter.Write(req.Dir, collector.files, atomicwriter.Options{GID: req.FSGroup, Now: now.Now()})
	if err != nil {
		return volume.Mount{}, fmt.Errorf("write files of volume %q: %w", req.Spec.Name, err)
	}
	return volume.Mount{Path: req.Dir, ReadOnly: true}, nil
}

// Refresh implements volume.Refresher.
func (p *Plugin) Refresh(ctx context.Context, req volume.Request) error {
	_, err := p.SetUp(ctx, req)
	return err
}

// TearDown implements volume.Plugin.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	return mounts.UnmountAndRemoveAll(ctx, p.deps.Mounter, dir)
}

// prepareDir makes the directory, and mounts memory on it if the volume is to be there.
func (p *Plugin) prepareDir(req volume.Request) error {
	if err := os.MkdirAll(filepath.Dir(req.Dir), 0o750); err != nil {
		return err
	}
	if err := os.Mkdir(req.Dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	mode := os.FileMode(0o755)
	if req.FSGroup != nil {
		mode |= os.ModeSetgid
	}
	if p.inMemory {
		mounted, err := p.deps.Mounter.IsMountPoint(req.Dir)
		if err != nil || mounted {
			return err
		}
		options := []string{"nosuid", "nodev", "mode=0755"}
		if req.FSGroup != nil {
			options = []string{"nosuid", "nodev", "mode=2755", "gid=" + strconv.FormatInt(*req.FSGroup, 10)}
		}
		return mounts.MountTmpfs(p.deps.Mounter, req.Dir, options...)
	}
	if req.FSGroup != nil {
		if err := os.Lchown(req.Dir, -1, int(*req.FSGroup)); err != nil {
			return err
		}
	}
	return os.Chmod(req.Dir, mode)
}
