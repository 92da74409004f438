package provision

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// errHasRun refuses an option that comes too late.
var errHasRun = errors.New("cannot call option functions after controller has Run")

// set makes an option out of a change to the settings. The change is made on a copy, so that an option
// that fails changes nothing.
func set(change func(*settings) error) func(*ProvisionController) error {
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

// number is what the range checks of options work on.
type number interface{ ~int | ~int32 | ~int64 }

func atLeast[N number](option string, value, least N) error {
	if value < least {
		return fmt.Errorf("option %s: %v is less than %v", option, value, least)
	}
	return nil
}

// AdditionalProvisionerNames sets names, beside the provisioner's own, whose claims and volumes the
// controller serves as well.
func AdditionalProvisionerNames(additionalProvisionerNames []string) func(*ProvisionController) error {
	names := append([]string(nil), additionalProvisionerNames...)
	return set(func(s *settings) error {
		if slices.Contains(names, "") {
			return errors.New("option AdditionalProvisionerNames: empty name")
		}
		s.additionalNames = names
		return nil
	})
}

// ResyncPeriod is how often claims, volumes and classes are looked at again although nothing
// changed: the safety net under lost events, and one more try for what was given up. Zero switches it off.
// Defaults to 15 minutes.
func ResyncPeriod(resyncPeriod time.Duration) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if err := atLeast("ResyncPeriod", resyncPeriod, 0); err != nil {
			return err
		}
		s.resyncPeriod = resyncPeriod
		return nil
	})
}

// Threadiness is how many provisioning and how many deleting calls may run at the same time. Defaults to 4.
func Threadiness(threadiness int) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if err := atLeast("Threadiness", threadiness, 1); err != nil {
			return err
		}
		s.threadiness = threadiness
		return nil
	})
}

// RateLimiter sets the limiter of the retries of Provision and Delete, in place of the default one. If set,
// ExponentialBackOffOnError is ignored. Claims are known to it by their UID, volumes by their name.
func RateLimiter(rateLimiter workqueue.RateLimiter) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if rateLimiter == nil {
			return errors.New("option RateLimiter: nil")
		}
		s.limiter = rateLimiter
		return nil
	})
}

// ExponentialBackOffOnError determines whether to back off exponentially (15 s doubling to 1000 s) from
// failures of Provision and Delete, or to wait 15 s each time. Defaults to true.
func ExponentialBackOffOnError(exponentialBackOffOnError bool) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.exponential = exponentialBackOffOnError
		return nil
	})
}

// FailedProvisionThreshold is how many retries follow a failed Provision before the controller gives
// up. Set to 0 to retry indefinitely. Defaults to 15.
func FailedProvisionThreshold(failedProvisionThreshold int) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if err := atLeast("FailedProvisionThreshold", failedProvisionThreshold, 0); err != nil {
			return err
		}
		s.failedProvisionThreshold = failedProvisionThreshold
		return nil
	})
}

// FailedDeleteThreshold is how many retries follow a failed Delete before the controller gives up. Set
// to 0 to retry indefinitely. Defaults to 15.
func FailedDeleteThreshold(failedDeleteThreshold int) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if err := atLeast("FailedDeleteThreshold", failedDeleteThreshold, 0); err != nil {
			return err
		}
		s.failedDeleteThreshold = failedDeleteThreshold
		return nil
	})
}

// LeaderElection determines whether to work only while holding the Lease named like the provisioner (with "-" for
// "/"). Defaults to true.
func LeaderElection(leaderElection bool) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.leaderElection = leaderElection
		return nil
	})
}

// LeaderElectionNamespace is the namespace of the Lease. Defaults to the namespace that the process runs
// in, else "default".
func LeaderElectionNamespace(leaderElectionNamespace string) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.leaderNamespace = leaderElectionNamespace
		return nil
	})
}

// LeaseDuration is how long others wait after the last renewal they saw before they take the Lease. Defaults to
// 15 seconds.
func LeaseDuration(leaseDuration time.Duration) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if err := atLeast("LeaseDuration", leaseDuration, 1); err != nil {
			return err
		}
		s.leaseDuration = leaseDuration
		return nil
	})
}

// RenewDeadline is how long the leader tries to renew the Lease before it stops working. Defaults to 10 seconds.
func RenewDeadline(renewDeadline time.Duration) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if err := atLeast("RenewDeadline", renewDeadline, 1); err != nil {
			return err
		}
		s.renewDeadline = renewDeadline
		return nil
	})
}

// RetryPeriod is the time between two tries to take or renew the Lease. Defaults to 2 seconds.
func RetryPeriod(retryPeriod time.Duration) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if err := atLeast("RetryPeriod", retryPeriod, 1); err != nil {
			return err
		}
		s.retryPeriod = retryPeriod
		return nil
	})
}

// ClaimsInformer sets the informer to use for PersistentVolumeClaims. The caller starts it. Defaults to one of the
// controller's own.
func ClaimsInformer(informer cache.SharedIndexInformer) func(*ProvisionController) error {
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
func VolumesInformer(informer cache.SharedInformer) func(*ProvisionController) error {
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
func ClassesInformer(informer cache.SharedInformer) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if informer == nil {
			return errors.New("option ClassesInformer: nil")
		}
		s.classes = informer
		return nil
	})
}

// MetricsPort is the port of the metrics server. Default: 0, no server.
func MetricsPort(metricsPort int32) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if err := atLeast("MetricsPort", metricsPort, 0); err != nil {
			return err
		}
		s.metricsPort = metricsPort
		return nil
	})
}

// MetricsAddress is the IP address that the metrics server listens on. Default: 0.0.0.0, all.
func MetricsAddress(metricsAddress string) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.metricsAddress = metricsAddress
		return nil
	})
}

// MetricsPath is the path of the metrics page. Default: /metrics.
func MetricsPath(metricsPath string) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if !strings.HasPrefix(metricsPath, "/") {
			return fmt.Errorf("option MetricsPath: %q does not begin with a slash", metricsPath)
		}
		s.metricsPath = metricsPath
		return nil
	})
}

// CreateProvisionedPVRetryCount is how often saving the PersistentVolume of a provisioned volume is tried.
// Defaults to 5. If it is not saved by then, the volume is deleted and provisioned anew. It may be
// combined with CreateProvisionedPVInterval only.
//
// Deprecated: Use CreateProvisionedPVLimiter instead, it tries indefinitely.
func CreateProvisionedPVRetryCount(createProvisionedPVRetryCount int) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.saveRetries = createProvisionedPVRetryCount
		if err := atLeast("CreateProvisionedPVRetryCount", s.saveRetries, 0); err != nil {
			return err
		}
		return s.saveOptionsAgree()
	})
}

// CreateProvisionedPVInterval is the time between two tries to save the PersistentVolume of a provisioned
// volume. Defaults to 10 seconds. It may be combined with CreateProvisionedPVRetryCount only.
//
// Deprecated: Use CreateProvisionedPVLimiter instead, it tries indefinitely.
func CreateProvisionedPVInterval(createProvisionedPVInterval time.Duration) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.saveInterval = createProvisionedPVInterval
		if err := atLeast("CreateProvisionedPVInterval", s.saveInterval, 0); err != nil {
			return err
		}
		return s.saveOptionsAgree()
	})
}

// CreateProvisionedPVBackoff is the backoff between tries to save the PersistentVolume of a provisioned
// volume. If it is not saved after backoff.Steps tries, the volume is deleted and provisioned anew.
// Defaults to 5 tries, 10 seconds apart. It excludes the other CreateProvisionedPV options.
//
// Deprecated: Use CreateProvisionedPVLimiter instead, it tries indefinitely.
func CreateProvisionedPVBackoff(backoff wait.Backoff) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.saveBackoff = &backoff
		return s.saveOptionsAgree()
	})
}

// CreateProvisionedPVLimiter makes saving a PersistentVolume go on until it succeeds, at the pace of the
// limiter; the volume is never deleted because it could not be saved. Volumes are known to the limiter by
// the UID of their claim. It excludes the other CreateProvisionedPV options.
func CreateProvisionedPVLimiter(limiter workqueue.RateLimiter) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if limiter == nil {
			return errors.New("option CreateProvisionedPVLimiter: nil")
		}
		s.saveLimiter = limiter
		return s.saveOptionsAgree()
	})
}
