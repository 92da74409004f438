// Package identities keeps the certificates, keys and kubeconfigs of a cluster: it makes them at a start, and renews them while the
// cluster runs.
package identities

import (
	"context"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/controllermanager"
	"github.com/berth-dev/berth/controlplane/kubeconfig"
	"github.com/berth-dev/berth/controlplane/pki"
	"github.com/berth-dev/berth/controlplane/rbac"
	"github.com/berth-dev/berth/controlplane/scheduler"
)

const (
	// checkPeriod is how often certificates are checked; a shorter life makes that a twelfth of it, which is a quarter of the time that
	// is left for a renewal.
	checkPeriod   = 12 * time.Hour
	checksPerLife = 12
	// retryPeriod is how long after a failure, such as a full disk, the next attempt is.
	retryPeriod = time.Minute
)

// Deps are the dependencies of Identities.
type Deps struct {
	Clock clock.PassiveClock
	// Wait returns nil at a time, or when the clock was set, and an error when ctx ends before (wallclock.Wait).
	Wait func(ctx context.Context, until time.Time) error
}

// Identities are those of one cluster.
type Identities struct {
	deps   Deps
	config *config.Config
	pki    *pki.PKI
}

// Ensure makes what is missing or damaged, ends soon, or does not match the flags. It must not run twice at the same time.
func Ensure(deps Deps, c *config.Config) (*Identities, error) {
	now := deps.Clock.Now()
	certificates, err := pki.Ensure(c.PKIDir(), pki.Spec{
		Addresses: append([]string{c.Advertise(), c.ServiceIP().String()}, c.BindAddresses...),
		NodeName:  c.NodeName, NodeIP: c.NodeIP, Life: c.CertificateLifetime,
	}, now)
	if err != nil {
		return nil, err
	}
	if err := kubeconfig.Prepare(c.DataDir, c.KubeconfigDir()); err != nil {
		return nil, err
	}
	i := &Identities{deps: deps, config: c, pki: certificates}
	return i, i.ensureKubeconfigs(now)
}

// Run renews certificates until ctx ends. What runs loads them by itself.
func (i *Identities) Run(ctx context.Context) {
	period := min(checkPeriod, i.config.CertificateLifetime/checksPerLife)
	wait := period
	for {
		if err := i.deps.Wait(ctx, i.deps.Clock.Now().Add(wait)); err != nil {
			if ctx.Err() == nil {
				klog.ErrorS(err, "Certificates are renewed at the next start only")
			}
			return
		}
		wait = period
		if err := i.renew(i.deps.Clock.Now()); err != nil {
			wait = min(period, retryPeriod)
			klog.ErrorS(err, "Failed to renew certificates; trying again", "after", wait)
		}
	}
}

func (i *Identities) renew(now time.Time) error {
	if err := i.pki.Renew(now); err != nil {
		return err
	}
	return i.ensureKubeconfigs(now)
}

func (i *Identities) ensureKubeconfigs(now time.Time) error {
	server, authority := i.config.ServerURL(), i.pki.Cluster()
	if err := kubeconfig.Ensure(i.config.AdminKubeconfig(), server, authority, admin(), now); err != nil {
		return err
	}
	for part, id := range components(i.config.NodeName) {
		if err := kubeconfig.EnsureComponent(i.config.Kubeconfig(part), server, authority, id, now); err != nil {
			return err
		}
	}
	return nil
}

// admin is the identity of the cluster's owner.
func admin() pki.Identity {
	return pki.Identity{CommonName: "berth:admin", Organizations: []string{"system:masters"}}
}

// ControlPlane is the name of the control plane's own kubeconfig, which is the owner's identity.
const ControlPlane = "controlplane"

// components are the identities of the components, by the names of their kubeconfigs.
func components(nodeName string) map[string]pki.Identity {
	return map[string]pki.Identity{
		ControlPlane:           admin(),
		"node":                 {CommonName: "system:node:" + nodeName, Organizations: []string{"system:nodes"}},
		controllermanager.Name: {CommonName: "system:kube-controller-manager"},
		scheduler.Name:         {CommonName: "system:kube-scheduler"},
		"kube-proxy":           {CommonName: "system:kube-proxy"}, // upstream's default policy has its role
		"provision":            component(rbac.ProvisionUser),
		"attachdetach":         component(rbac.AttachDetachUser),
		"attacher":             component(rbac.AttacherUser),
		"replicaset":           component(rbac.ReplicaSetUser),
		"dns":                  component(rbac.DNSUser),
		"approver":             component(rbac.ApproverUser),
		"load-balancer":        component(rbac.LoadBalancerUser),
		"timeline":             component(rbac.TimelineUser),
	}
}

// component is the identity of one of Berth's components.
func component(user string) pki.Identity {
	return pki.Identity{CommonName: user, Organizations: []string{rbac.ComponentsGroup}}
}
