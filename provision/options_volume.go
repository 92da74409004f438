package provision

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
)

// CreateProvisionedPVRetryCount is how many times the controller tries to save the PersistentVolume of a provisioned
// volume. After that it deletes the volume and provisions again. Defaults to 5. It may be combined with
// CreateProvisionedPVInterval only.
//
// Deprecated: Use CreateProvisionedPVLimiter instead, it tries indefinitely.
func CreateProvisionedPVRetryCount(createProvisionedPVRetryCount int) Option {
	return set(func(s *settings) error {
		s.saveRetries = createProvisionedPVRetryCount
		if err := atLeast("CreateProvisionedPVRetryCount", s.saveRetries, 0); err != nil {
			return err
		}
		return s.saveOptionsAgree()
	})
}

// CreateProvisionedPVInterval is the time between two tries to save the PersistentVolume of a provisioned volume. Defaults
// to 10 seconds. It may be combined with CreateProvisionedPVRetryCount only.
//
// Deprecated: Use CreateProvisionedPVLimiter instead, it tries indefinitely.
func CreateProvisionedPVInterval(createProvisionedPVInterval time.Duration) Option {
	return set(func(s *settings) error {
		s.saveInterval = createProvisionedPVInterval
		if err := atLeast("CreateProvisionedPVInterval", s.saveInterval, 0); err != nil {
			return err
		}
		return s.saveOptionsAgree()
	})
}

// CreateProvisionedPVBackoff is the backoff between tries to save the PersistentVolume of a provisioned volume. After
// backoff.Steps tries the controller deletes the volume and provisions again. Defaults to 5 tries, 10 seconds apart. It
// excludes the other CreateProvisionedPV options.
//
// Deprecated: Use CreateProvisionedPVLimiter instead, it tries indefinitely.
func CreateProvisionedPVBackoff(backoff wait.Backoff) Option {
	return set(func(s *settings) error {
		s.saveBackoff = &backoff
		return s.saveOptionsAgree()
	})
}

// CreateProvisionedPVLimiter retries saving a PersistentVolume until it succeeds, with the delays of the limiter, and never
// deletes a volume because it could not be saved. The items of the limiter are the UIDs of claims. It excludes the other
// CreateProvisionedPV options.
func CreateProvisionedPVLimiter(limiter workqueue.RateLimiter) Option {
	return set(func(s *settings) error {
		if limiter == nil {
			return errors.New("option CreateProvisionedPVLimiter: nil")
		}
		s.saveLimiter = limiter
		return s.saveOptionsAgree()
	})
}

// AddFinalizer determines whether PersistentVolumes with the policy Delete get the finalizer
// external-provisioner.volume.kubernetes.io/finalizer. It prevents that a PersistentVolume which is deleted before its claim
// leaves its storage behind. The controller removes it when the policy becomes Retain or Recycle, and from all of its
// volumes if the option is false. Defaults to true.
func AddFinalizer(addFinalizer bool) Option {
	return set(func(s *settings) error {
		s.addFinalizer = addFinalizer
		return nil
	})
}

// ClaimIntent determines whether the controller adds a finalizer to a claim before the first call for it, and removes it
// once the outcome is saved. Without it, a crash between the call and the save leaks the volume if the claim is deleted
// meanwhile. With it, the controller needs the right to patch persistentvolumeclaims. Defaults to true.
func ClaimIntent(claimIntent bool) Option {
	return set(func(s *settings) error {
		s.claimIntent = claimIntent
		return nil
	})
}

// IntentFinalizer is the name of the finalizer of ClaimIntent. Controllers that serve one provisioner name at the same time
// without leader election, such as one on each node, should have one each. Defaults to a name derived from the
// provisioner's.
func IntentFinalizer(name string) Option {
	return set(func(s *settings) error {
		if name == "" {
			return errors.New("option IntentFinalizer: empty")
		}
		s.intentFinalizer = name
		return nil
	})
}
