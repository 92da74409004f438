package provision

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// ErrLeaseLost is returned by RunContext if another process took the Lease, or if it could not be renewed.
var ErrLeaseLost = errors.New("lost the lease")

// lead works while it holds the Lease. The Lease is kept until the work has ended and released only then,
// so that the next leader never meets calls of this one.
func (ctrl *ProvisionController) lead(ctx context.Context, work func(context.Context) error) error {
	elected := make(chan struct{})
	elector, err := ctrl.newElector(func() { close(elected) })
	if err != nil {
		return err
	}
	holdCtx, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(holdCtx)
	}()
	select {
	case <-ctx.Done():
		release()
		<-ended
		return nil
	case <-ended:
		return ErrLeaseLost
	case <-elected:
	}
	workCtx, stop := context.WithCancel(ctx)
	defer stop()
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-ended:
			stop()
		case <-workCtx.Done():
		}
	}()
	err = work(workCtx)
	stop()
	<-watching
	lost := false
	select {
	case <-ended:
		lost = true
	default:
	}
	release()
	<-ended
	if err == nil && lost {
		return ErrLeaseLost
	}
	return err
}

func (ctrl *ProvisionController) newElector(elected func()) (*leaderelection.LeaderElector, error) {
	s := &ctrl.settings
	name := leaseName(ctrl.provisionerName)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: s.leaderNamespace, Name: name},
			Client:     ctrl.leases(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: ctrl.identity},
		},
		LeaseDuration: s.leaseDuration, RenewDeadline: s.renewDeadline, RetryPeriod: s.retryPeriod,
		ReleaseOnCancel: true,
		Name:            name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { elected() },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("set up the lease %q in namespace %q: %w", name, s.leaderNamespace, err)
	}
	return elector, nil
}

// leases is the client of the Lease: a limited client that waits for its own requests must not lose its lease.
func (ctrl *ProvisionController) leases() coordinationclient.LeasesGetter {
	if c := ctrl.settings.leaseClient; c != nil {
		return c.CoordinationV1()
	}
	return unthrottled(ctrl.client).CoordinationV1()
}
