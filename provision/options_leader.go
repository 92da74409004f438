package provision

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/kubernetes"
)

// LeaderElection determines whether to work only while holding the Lease, which has the provisioner's name with "-" for
// "/". Defaults to true.
func LeaderElection(leaderElection bool) Option {
	return set(func(s *settings) error {
		s.leaderElection = leaderElection
		return nil
	})
}

// LeaderElectionNamespace is the namespace of the Lease. Defaults to the namespace in which the process runs, or to
// "default" outside of a Pod.
func LeaderElectionNamespace(leaderElectionNamespace string) Option {
	return set(func(s *settings) error {
		s.leaderNamespace = leaderElectionNamespace
		return nil
	})
}

// LeaseDuration is how long other candidates wait after the last renewal that they observed before they take the Lease.
// Defaults to 15 seconds.
func LeaseDuration(leaseDuration time.Duration) Option {
	return set(func(s *settings) error {
		if err := atLeast("LeaseDuration", leaseDuration, 1); err != nil {
			return err
		}
		s.leaseDuration = leaseDuration
		return nil
	})
}

// RenewDeadline is how long the leader tries to renew the Lease before it stops working. Defaults to 10 seconds.
func RenewDeadline(renewDeadline time.Duration) Option {
	return set(func(s *settings) error {
		if err := atLeast("RenewDeadline", renewDeadline, 1); err != nil {
			return err
		}
		s.renewDeadline = renewDeadline
		return nil
	})
}

// RetryPeriod is the time between two tries to take or renew the Lease. Defaults to 2 seconds.
func RetryPeriod(retryPeriod time.Duration) Option {
	return set(func(s *settings) error {
		if err := atLeast("RetryPeriod", retryPeriod, 1); err != nil {
			return err
		}
		s.retryPeriod = retryPeriod
		return nil
	})
}

// LeaseClient is the client that renews the Lease. Defaults to one that shares the connections of the controller's client
// but not its rate limit, so that a busy controller does not lose its Lease.
func LeaseClient(client kubernetes.Interface) Option {
	return set(func(s *settings) error {
		if client == nil {
			return errors.New("option LeaseClient: nil")
		}
		s.leaseClient = client
		return nil
	})
}

// WithRunnable runs a function while the controller works: with leader election only while it leads. The function gets a
// context that ends with the controller's work, and must return soon after; an error of it ends the controller. The option
// may be given several times.
func WithRunnable(run func(context.Context) error) Option {
	return set(func(s *settings) error {
		if run == nil {
			return errors.New("option WithRunnable: nil")
		}
		s.runnables = append(s.runnables, run)
		return nil
	})
}
