// Package controllermanager runs kube-controller-manager inside this process,
// without the two controllers that Berth replaces.
package controllermanager

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"

	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/pki"
	"github.com/berth-dev/berth/controlplane/watchprobe"
)

// Name is the controller manager's name among the kubeconfigs.
const Name = "controller-manager"

// Manager is the controller manager. Use it once: it keeps process-wide state.
type Manager struct{ config *config.Config }

// New returns a manager that Run starts. Its kubeconfig must exist by then.
func New(config *config.Config) *Manager { return &Manager{config: config} }

// Run works until ctx ends; ready is called once, when the first watch of its
// informers has been accepted. The API server must be ready before.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return fmt.Errorf("make options: %w", err)
	}
	known, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	flags := o.Flags(known, disabled, aliases)
	all := flags.FlagSet("all")
	for _, set := range flags.FlagSets {
		if set != all {
			all.AddFlagSet(set)
		}
	}
	if err := all.Parse(Args(m.config)); err != nil {
		return fmt.Errorf("parse flags: %w", err)
	}
	c, err := o.Config(ctx, known, disabled, aliases)
	if err != nil {
		return fmt.Errorf("validate options: %w", err)
	}
	c.Kubeconfig.Wrap(watchprobe.Wrap(ready))
	if err := app.Run(ctx, c.Complete()); err != nil {
		return err
	}
	if ctx.Err() == nil {
		return errors.New("all controllers ended by themselves")
	}
	return nil
}

// controllers is the value of --controllers. Berth replaces two of upstream's. The token cleaner, which upstream leaves to whoever runs it,
// deletes bootstrap tokens when they expire.
func controllers(c *config.Config) string {
	if c.APIOnly {
		return "garbage-collector-controller,namespace-controller"
	}
	return "*,token-cleaner-controller,-persistentvolume-attach-detach-controller,-replicaset-controller"
}

// Args are kube-controller-manager's flags for c.
func Args(c *config.Config) []string {
	file := func(name string) string { return filepath.Join(c.PKIDir(), name) }
	return append([]string{
		"--kubeconfig=" + c.Kubeconfig(Name),
		"--secure-port=0", // nothing else may listen
		"--leader-elect=false",
		"--profiling=false",
		"--controllers=" + controllers(c),
		// Below zero: no client-side limit. Upstream's 20 a second alone makes 200
		// claims take 48 s. Burst has no meaning then, but must not be 0.
		"--kube-api-qps=-1",
		"--kube-api-burst=1000",
		// The managers' own deadline for controllers that do not end.
		"--controller-shutdown-timeout=3s",

		"--use-service-account-credentials=true",
		"--root-ca-file=" + file(pki.CA+".crt"),
		"--service-account-private-key-file=" + file(pki.ServiceAccount+".key"),
		"--cluster-signing-cert-file=" + file(pki.CA+".crt"),
		"--cluster-signing-key-file=" + file(pki.CA+".key"),

		"--allocate-node-cidrs=true",
		"--cluster-cidr=" + c.PodCIDR,
		"--service-cluster-ip-range=" + c.ServiceCIDR,
	}, c.NodeMaskArgs()...)
}
