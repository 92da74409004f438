package agent

import (
	"context"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/csinode"
	"github.com/berth-dev/berth/kubelet/objects"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/kubelet/podcertificate"
	"github.com/berth-dev/berth/kubelet/token"
	"github.com/berth-dev/berth/kubelet/trustbundle"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/csi"
	"github.com/berth-dev/berth/volume/iscsi"
	"github.com/berth-dev/berth/volume/operationexecutor"
	"github.com/berth-dev/berth/volume/plugins"
)

// storageComponents mount the volumes of Pods, and provide the objects and tokens that volumes show.
type storageComponents struct {
	objects *objects.Manager
	tokens  *token.Manager
	drivers *csi.Drivers
	csi     *csi.Plugin
	csiNode *csinode.Manager
	plugins *pluginmanager.Manager
	volumes *volumemanager.Manager
	// bundles and certificates are nil where there is no API server.
	bundles      *trustbundle.Manager
	certificates *podcertificate.Manager
	// limits has the CSI drivers that report that their limit of volumes is exceeded.
	limits chan string
}

func newStorage(base *base, n *nodeComponents, allocatable func() corev1.ResourceList) (*storageComponents, error) {
	config, deps := &base.config, &base.deps
	s := &storageComponents{drivers: csi.NewDrivers(), limits: make(chan string, 1)}
	var err error
	if s.objects, err = objects.New(objects.Deps{Client: deps.Client, Clock: deps.Clock, Logger: base.logger("objects")}); err != nil {
		return nil, err
	}
	if s.tokens, err = token.New(token.Deps{Client: deps.Client, Clock: deps.sleepless, Logger: base.logger("tokens")}); err != nil {
		return nil, err
	}
	s.objects.Subscribe(base.signals.Wake)
	if s.csi, err = csi.New(csi.Deps{
		Client: deps.Client, Drivers: s.drivers, Tokens: s.tokens, Mounter: deps.Mounter, Logger: base.logger("csi"),
		OnLimitExceeded: func(driver string) {
			select {
			case s.limits <- driver:
			default: // the volume is retried, and reports it again
			}
		},
	}, csi.Config{RootDir: config.RootDir, NodeName: config.Node.Name}); err != nil {
		return nil, err
	}
	sources, err := s.addIssuers(base, n)
	if err != nil {
		return nil, err
	}
	registry, err := s.newRegistry(base, allocatable)
	if err != nil {
		return nil, err
	}
	durations, calls := operationexecutor.NewDurations(), csi.NewCallMetrics(deps.Clock)
	base.metrics.main.MustRegister(durations, calls, contain.Metrics())
	if s.volumes, err = volumemanager.New(volumemanager.Deps{
		Client: deps.Client, Plugins: registry, Objects: s.objects, Tokens: s.tokens, Sources: sources, Node: n.manager,
		Claims:  deps.Claims,
		Observe: durations.Observe, OnFailure: base.statuses.Hurry, Mounter: deps.Mounter, Timeline: deps.Timeline, Recorder: deps.Recorder,
		Clock: deps.Clock, Logger: base.logger("volumes"),
	}, volumemanager.Config{
		RootDir: config.RootDir, NodeName: config.Node.Name, NoAPIServer: deps.standalone, SELinuxMount: config.Pods.SELinuxMount,
		UsageMaxAge: config.Pods.UsageMaxAge,
	}); err != nil {
		return nil, err
	}
	base.metrics.main.MustRegister(s.volumes.Collectors()...)
	if s.csiNode, err = csinode.New(csinode.Deps{
		Client: deps.Client, Drivers: s.drivers, Calls: calls, Registered: n.manager.Registered(), Node: n.manager.Node,
		NotReady: func(reason error) { n.manager.SetNotReady("csi", reason) }, RefreshPeriod: s.csi.AllocatableUpdatePeriod,
		Clock: deps.Clock, Logger: base.logger("csi"),
	}, csinode.Config{NodeName: config.Node.Name}); err != nil {
		return nil, err
	}
	s.drivers.Subscribe(s.volumes.Retry)
	s.drivers.Subscribe(s.csiNode.RefreshPeriodsChanged)
	n.changes.Add(s.volumes.NodeChanged)
	n.changes.Add(s.csiNode.NodeChanged)
	s.plugins, err = pluginmanager.New(pluginmanager.Deps{
		Handlers: map[string]pluginmanager.Handler{
			registerapi.CSIPlugin: s.csiNode, registerapi.DevicePlugin: n.managers.DevicePlugins(), registerapi.DRAPlugin: n.managers.DRAPlugins(),
		},
		Clock: deps.Clock, Logger: base.logger("plugins"),
	}, pluginmanager.Config{Dir: filepath.Join(config.RootDir, "plugins_registry")})
	if err != nil {
		return nil, err
	}
	base.metrics.main.MustRegister(s.plugins)
	return s, nil
}

// newRegistry returns the volume plugins.
func (s *storageComponents) newRegistry(base *base, allocatable func() corev1.ResourceList) (*volume.Registry, error) {
	deps := plugins.Deps{
		Objects: s.objects, Tokens: s.tokens, Mounter: base.deps.Mounter, NodeAllocatable: allocatable, CSI: s.csi,
		Others: base.deps.VolumePlugins, ProjectQuotas: !base.config.Pods.NoProjectQuotas,
	}
	var err error
	if deps.ISCSI, err = iscsi.New(iscsi.Deps{
		Secret: func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
			return base.deps.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Mounter: base.deps.Mounter, Clock: base.deps.Clock, Logger: base.logger("iscsi"),
	}, iscsi.Config{RootDir: base.config.RootDir, Standalone: base.deps.standalone}); err != nil {
		return nil, err
	}
	if !base.deps.standalone {
		deps.TrustBundles, deps.Certificates = s.bundles, s.certificates
	}
	return plugins.New(deps)
}

// addIssuers adds the components that provide trust anchors and certificates, where there is an API server.
func (s *storageComponents) addIssuers(base *base, n *nodeComponents) (sources []volumemanager.Source, err error) {
	deps := &base.deps
	if deps.standalone {
		return nil, nil
	}
	if s.bundles, err = trustbundle.New(trustbundle.Deps{Client: deps.Client, Logger: base.logger("trust bundles")}); err != nil {
		return nil, err
	}
	if s.certificates, err = podcertificate.New(podcertificate.Deps{
		Client: deps.Client, Node: n.manager.Node, Recorder: deps.Recorder, Clock: deps.Clock, Logger: base.logger("pod certificates"),
	}, base.config.Node.Name); err != nil {
		return nil, err
	}
	base.metrics.main.MustRegister(s.certificates)
	return []volumemanager.Source{s.bundles, s.certificates}, nil
}

// startIssuers runs what addIssuers has added.
func (s *storageComponents) startIssuers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("agent.startIssuers", "", func() error { return s.bundles.Start(ctx) }))
	group.Go(contain.Func("agent.startIssuers", "", func() error { return s.certificates.Start(ctx) }))
	return group.Wait()
}

// refreshLimits has drivers asked again for their limit of volumes when it is exceeded, until ctx ends.
func (s *storageComponents) refreshLimits(ctx context.Context) error {
	for {
		select {
		case driver := <-s.limits:
			s.csiNode.RefreshAllocatable(driver)
		case <-ctx.Done():
			return nil
		}
	}
}
