package iscsi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/keylock"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/mounts"
)

const (
	// Name is the plugin's name.
	Name = "kubernetes.io/iscsi"
	// Program is what makes and ends sessions.
	Program = "iscsiadm"
)

// Deps holds what the plugin uses.
type Deps struct {
	// Secret reads a Secret with the credentials of a session. It is required.
	Secret func(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	// Mounter defaults to system calls, Clock to the real one, and Logger to none.
	Mounter mounts.Mounter
	Clock   clock.Clock
	Logger  *slog.Logger
}

// Config holds the settings of the plugin.
type Config struct {
	// RootDir is the kubelet's directory. It is required.
	RootDir string
	// Standalone says that there is no API server, and no attach/detach controller that the plugin would have to wait for.
	Standalone bool
	// Program makes and ends sessions. It defaults to Program in PATH. Multipath flushes a multipath device; it defaults to multipath in PATH.
	Program, Multipath string
	// SysDir is where the kernel's sysfs is mounted, DevDir where the nodes of devices are. They default to /sys and /dev.
	SysDir, DevDir string
}

// Plugin is the volume plugin. It is safe for concurrent use.
type Plugin struct {
	deps   Deps
	config Config
	// layout is where the plugin's files are, records what is kept of disks.
	layout    layout
	records   store
	kernel    kernel
	initiator initiator
	pinner    *blockpin.Pinner
	// targets has, by its name, each target whose sessions are made or ended.
	targets keylock.Locks[string]
}

var (
	_ volume.Attachable     = (*Plugin)(nil)
	_ volume.BlockMapper    = (*Plugin)(nil)
	_ volume.SELinuxMounter = (*Plugin)(nil)
)

// New returns the plugin. It does nothing until a volume needs it.
func New(deps Deps, config Config) (*Plugin, error) {
	if deps.Secret == nil || config.RootDir == "" {
		return nil, errors.New("create iscsi plugin: Deps.Secret and Config.RootDir are required")
	}
	if deps.Mounter == nil {
		deps.Mounter = mounts.Syscalls{}
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	config.Program, config.Multipath = cmp.Or(config.Program, Program), cmp.Or(config.Multipath, "multipath")
	config.SysDir, config.DevDir = cmp.Or(config.SysDir, "/sys"), cmp.Or(config.DevDir, "/dev")
	at := layout(filepath.Join(config.RootDir, "plugins", Name))
	records := store{dir: at.recordsDir(), logger: deps.Logger}
	return &Plugin{
		deps: deps, config: config, layout: at, records: records,
		initiator: initiator{program: config.Program, secret: deps.Secret, records: records},
		kernel:    kernel{sys: config.SysDir, dev: config.DevDir, multipathProgram: config.Multipath, clock: deps.Clock, logger: deps.Logger},
		pinner:    blockpin.New(blockpin.Deps{Mounter: deps.Mounter, Clock: deps.Clock}),
	}, nil
}

// Name implements volume.Plugin.
func (p *Plugin) Name() string { return Name }

// CanSupport implements volume.Plugin.
func (p *Plugin) CanSupport(spec volume.Spec) bool { return sourceOf(spec, "") != nil }

// SupportsSELinuxMount implements volume.SELinuxMounter.
func (p *Plugin) SupportsSELinuxMount(context.Context, volume.Spec) (bool, error) { return true, nil }

// Device implements volume.Attachable. The attach/detach controller records that the node has the disk; the kubelet connects it.
func (p *Plugin) Device(_ context.Context, spec volume.Spec) (volume.Device, error) {
	t, err := targetOf(spec, "")
	if err != nil {
		return volume.Device{}, err
	}
	return volume.Device{Name: t.device, Attach: !p.config.Standalone, Block: t.block}, nil
}
