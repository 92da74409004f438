package provision

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Option changes how a controller works. New applies options in order; an option that is given after Run has begun
// returns an error.
type Option = func(*ProvisionController) error

// errHasRun is the error of an option that is given after Run has begun.
var errHasRun = errors.New("cannot call option functions after controller has Run")

// set returns an Option that makes a change to the settings. The change is made on a copy, so that an option that fails
// changes nothing.
func set(change func(*settings) error) Option {
	return func(c *ProvisionController) error {
		if c.started.Load() {
			return errHasRun
		}
		s := c.settings
		if err := change(&s); err != nil {
			return err
		}
		c.settings = s
		return nil
	}
}

type number interface{ ~int | ~int32 | ~int64 }

// atLeast returns an error that names the option if its value is out of range.
func atLeast[N number](option string, value, least N) error {
	if value < least {
		return fmt.Errorf("option %s: %v is less than %v", option, value, least)
	}
	return nil
}

// AdditionalProvisionerNames sets names, beside the provisioner's own, whose claims and volumes the controller serves.
func AdditionalProvisionerNames(additionalProvisionerNames []string) Option {
	names := append([]string(nil), additionalProvisionerNames...)
	return set(func(s *settings) error {
		if slices.Contains(names, "") {
			return errors.New("option AdditionalProvisionerNames: empty name")
		}
		s.additionalNames = names
		return nil
	})
}

// ClaimsInformer sets the informer to use for PersistentVolumeClaims. The caller starts it. Defaults to one of the
// controller's own.
func ClaimsInformer(informer cache.SharedIndexInformer) Option {
	return set(func(s *settings) error {
		if informer == nil {
			return errors.New("option ClaimsInformer: nil")
		}
		s.claims = informer
		return nil
	})
}

// VolumesInformer sets the informer to use for PersistentVolumes. The caller starts it. Defaults to one of the
// controller's own.
func VolumesInformer(informer cache.SharedInformer) Option {
	return set(func(s *settings) error {
		if informer == nil {
			return errors.New("option VolumesInformer: nil")
		}
		s.volumes = informer
		return nil
	})
}

// ClassesInformer sets the informer to use for StorageClasses (storage.k8s.io/v1). The caller starts it. Defaults to
// one of the controller's own.
func ClassesInformer(informer cache.SharedInformer) Option {
	return set(func(s *settings) error {
		if informer == nil {
			return errors.New("option ClassesInformer: nil")
		}
		s.classes = informer
		return nil
	})
}

// NodesInformer sets the informer to use for the selected Nodes. The caller starts it. Without it, each call that needs a
// Node gets it from the API server.
func NodesInformer(informer cache.SharedInformer) Option {
	return set(func(s *settings) error {
		if informer == nil {
			return errors.New("option NodesInformer: nil")
		}
		s.nodes = informer
		return nil
	})
}

// ResyncPeriod is how often claims, volumes and classes are synced although nothing changed. A resync is the safety net
// for lost events, and allows one more try for what was given up. Zero switches it off. Defaults to 15 minutes. An informer
// of the caller that was created without a resync period, or that is started with a longer one before the controller runs,
// resyncs only as it was created.
func ResyncPeriod(resyncPeriod time.Duration) Option {
	return set(func(s *settings) error {
		if err := atLeast("ResyncPeriod", resyncPeriod, 0); err != nil {
			return err
		}
		s.resyncPeriod = resyncPeriod
		return nil
	})
}

// Threadiness is how many provisioning and how many deleting calls may run at the same time. Defaults to 4.
func Threadiness(threadiness int) Option {
	return set(func(s *settings) error {
		if err := atLeast("Threadiness", threadiness, 1); err != nil {
			return err
		}
		s.threadiness = threadiness
		return nil
	})
}

// RateLimiter sets the limiter of the retries of Provision and Delete. If set, ExponentialBackOffOnError is ignored. Its
// items are the UIDs of claims and the names of volumes.
func RateLimiter(rateLimiter workqueue.RateLimiter) Option {
	return set(func(s *settings) error {
		if rateLimiter == nil {
			return errors.New("option RateLimiter: nil")
		}
		s.limiter = rateLimiter
		return nil
	})
}

// ExponentialBackOffOnError determines whether to back off exponentially from failures of Provision and Delete (15 s
// doubling to 1000 s), or to wait 15 s each time. Defaults to true.
func ExponentialBackOffOnError(exponentialBackOffOnError bool) Option {
	return set(func(s *settings) error {
		s.exponential = exponentialBackOffOnError
		return nil
	})
}

// RetryIntervalMax bounds the backoff of failed Provision and Delete calls, also that of a RateLimiter that was set. It does
// not shorten InfeasibleRetryInterval. Zero, the default, leaves the bound to the limiter: 1000 s.
func RetryIntervalMax(retryIntervalMax time.Duration) Option {
	return set(func(s *settings) error {
		if err := atLeast("RetryIntervalMax", retryIntervalMax, 0); err != nil {
			return err
		}
		s.retryIntervalMax = retryIntervalMax
		return nil
	})
}

// FailedProvisionThreshold is how many retries follow a failed Provision before the controller gives up. Set to 0 to
// retry indefinitely. Defaults to 15.
func FailedProvisionThreshold(failedProvisionThreshold int) Option {
	return set(func(s *settings) error {
		if err := atLeast("FailedProvisionThreshold", failedProvisionThreshold, 0); err != nil {
			return err
		}
		s.failedProvisionThreshold = failedProvisionThreshold
		return nil
	})
}

// FailedDeleteThreshold is how many retries follow a failed Delete before the controller gives up. Set to 0 to retry
// indefinitely. Defaults to 15.
func FailedDeleteThreshold(failedDeleteThreshold int) Option {
	return set(func(s *settings) error {
		if err := atLeast("FailedDeleteThreshold", failedDeleteThreshold, 0); err != nil {
			return err
		}
		s.failedDeleteThreshold = failedDeleteThreshold
		return nil
	})
}

// InfeasibleRetryInterval is how long a claim that failed with an InfeasibleError waits at least before it is retried
// unchanged. Defaults to 5 minutes; 0 leaves it to the rate limiter, as after any other error.
func InfeasibleRetryInterval(interval time.Duration) Option {
	return set(func(s *settings) error {
		if interval < 0 {
			return fmt.Errorf("option InfeasibleRetryInterval: %v is negative", interval)
		}
		s.infeasibleInterval = interval
		return nil
	})
}

// ClientLimit keeps the rate limit of the client given to New (client-go's default is 5 requests a second). Defaults
// to false: the controller uses that client's connections and identity without its limit.
func ClientLimit(clientLimit bool) Option {
	return set(func(s *settings) error {
		s.clientLimit = clientLimit
		return nil
	})
}

// Clock sets the clock of retries and delays, for tests.
func Clock(clock clock.WithTicker) Option {
	return set(func(s *settings) error {
		if clock == nil {
			return errors.New("option Clock: nil")
		}
		s.clock = clock
		return nil
	})
}
