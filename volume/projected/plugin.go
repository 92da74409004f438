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

// CheckSources returns an UnsupportedError that names the first source that a kubelet without an API server cannot provide.
func CheckSources(spec volume.Spec) error {
	if spec.Volume == nil || spec.Volume.Projected == nil {
		return nil
	}
	for i := range spec.Volume.Projected.Sources {
		source, field := &spec.Volume.Projected.Sources[i], ""
		switch {
		case source.ClusterTrustBundle != nil:
			field = "clusterTrustBundle"
		case source.PodCertificate != nil:
			field = "podCertificate"
		default:
			continue
		}
		return volume.Unsupported(spec, fmt.Sprintf("projected.sources[%d].%s", i, field),
			"this kubelet has no API server; use a configMap or a secret with the certificates instead")
	}
	return nil
}

// defaultMode is what the API server fills in for a volume that names none.
const defaultMode = 0o644

// Objects reads the objects that volumes are made of. For a missing object it returns an error for which
// apierrors.IsNotFound is true. The objects are shared and must not be modified.
type Objects interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
}

// Tokens requests tokens of a Pod's service account, bound to that Pod.
type Tokens interface {
	Token(ctx context.Context, pod *corev1.Pod, projection *corev1.ServiceAccountTokenProjection) (string, error)
}

// TrustBundles reads the trust anchors of ClusterTrustBundles, in PEM form.
type TrustBundles interface {
	TrustAnchors(ctx context.Context, pod *corev1.Pod, source *corev1.ClusterTrustBundleProjection) ([]byte, error)
}

// Certificates obtains certificates for Pods. A certificate belongs to a source of a volume, by the volume's name and the
// source's index. Key and chain are in PEM form.
type Certificates interface {
	Bundle(ctx context.Context, pod *corev1.Pod, volume string, index int, source *corev1.PodCertificateProjection,
	) (privateKey, chain []byte, err error)
}

// Deps holds what the plugins use. Objects and Tokens are required.
type Deps struct {
	Objects Objects
	Tokens  Tokens
	// TrustBundles and Certificates may be nil; then volumes with such sources are rejected.
	TrustBundles TrustBundles
	Certificates Certificates
	// Mounter defaults to system calls.
	Mounter mounts.Mounter
	// NodeAllocatable returns what resourceFieldRef reports as the limit of a container without one. It may be nil.
	NodeAllocatable func() corev1.ResourceList
	// Clock names the generations of files. It defaults to the real clock.
	Clock clock.PassiveClock
}

func (d *Deps) complete() error {
	switch {
	case d.Objects == nil:
		return errors.New("projected: Deps.Objects is required")
	case d.Tokens == nil:
		return errors.New("projected: Deps.Tokens is required")
	}
	if d.Mounter == nil {
		d.Mounter = mounts.Syscalls{}
	}
	if d.NodeAllocatable == nil {
		d.NodeAllocatable = func() corev1.ResourceList { return nil }
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	return nil
}

// Plugin is one of the four volume plugins. It has no state.
type Plugin struct {
	deps     Deps
	name     string
	inMemory bool
	// sources returns what the volume projects, nil if it is not of this plugin, and the default mode of its files.
	sources func(source *corev1.VolumeSource) (sources []corev1.VolumeProjection, mode *int32)
}

var _ volume.Refresher = (*Plugin)(nil)

// New returns the plugins for configMap, secret, downwardAPI and projected volumes.
func New(deps Deps) ([]*Plugin, error) {
	if err := deps.complete(); err != nil {
		return nil, err
	}
	return []*Plugin{
		{deps: deps, name: ConfigMapName, sources: configMapSources},
		{deps: deps, name: SecretName, inMemory: true, sources: secretSources},
		{deps: deps, name: DownwardAPIName, inMemory: true, sources: downwardAPISources},
		{deps: deps, name: ProjectedName, inMemory: true, sources: projectedSources},
	}, nil
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
		return []corev1.VolumeProjection{}, source.Projected.DefaultMode // not nil, so that the plugin supports it
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

// SetUp implements volume.Plugin. The content is read before anything is created on disk.
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
		return volume.Mount{}, fmt.Errorf("create directory for volume %q: %w", req.Spec.Name, err)
	}
	if err := makeMountPoints(req.Dir, req.Spec.Name, req.Pod); err != nil {
		return volume.Mount{}, fmt.Errorf("create mount points in volume %q: %w", req.Spec.Name, err)
	}
	_, err := atomicwriter.Write(req.Dir, collector.files, atomicwriter.Options{GID: req.FSGroup, Now: p.deps.Clock.Now()})
	if err != nil {
		return volume.Mount{}, fmt.Errorf("write files of volume %q: %w", req.Spec.Name, err)
	}
	return volume.Mount{Path: req.Dir, ReadOnly: true, SELinuxRelabel: true}, nil
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

// prepareDir creates the directory, and mounts a tmpfs on it if the plugin keeps its volumes in memory.
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
