package provision

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controller/leader"
	"github.com/berth-dev/berth/timeline"
)

// settings is what the options set. complete checks them and sets the defaults that depend on others. It has many fields
// because each option of the documented API sets one.
type settings struct {
	additionalNames []string
	claims          cache.SharedIndexInformer
	volumes         cache.SharedInformer
	classes         cache.SharedInformer
	nodes           cache.SharedInformer

	resyncPeriod time.Duration
	threadiness  int

	exponential              bool
	limiter                  workqueue.RateLimiter
	retryIntervalMax         time.Duration
	failedProvisionThreshold int
	failedDeleteThreshold    int
	infeasibleInterval       time.Duration

	saveRetries  int
	saveInterval time.Duration
	saveBackoff  *wait.Backoff
	saveLimiter  workqueue.RateLimiter

	leaderElection                            bool
	leaderNamespace                           string
	leaseDuration, renewDeadline, retryPeriod time.Duration
	leaseClient                               kubernetes.Interface
	clientLimit                               bool

	metricsPort    int32
	metricsAddress string
	metricsPath    string
	registerer     prometheus.Registerer

	addFinalizer    bool
	claimIntent     bool
	intentFinalizer string
	// intentOwned is set if no other controller can have written our intent finalizer.
	intentOwned bool

	runnables []func(context.Context) error

	logger   *slog.Logger
	clock    clock.WithTicker
	recorder record.EventRecorder
	timeline *timeline.Recorder
}

func defaultSettings() settings {
	return settings{
		resyncPeriod:             DefaultResyncPeriod,
		threadiness:              DefaultThreadiness,
		exponential:              DefaultExponentialBackOffOnError,
		failedProvisionThreshold: DefaultFailedProvisionThreshold,
		failedDeleteThreshold:    DefaultFailedDeleteThreshold,
		infeasibleInterval:       DefaultInfeasibleRetryInterval,
		leaderElection:           DefaultLeaderElection,
		leaseDuration:            DefaultLeaseDuration,
		renewDeadline:            DefaultRenewDeadline,
		retryPeriod:              DefaultRetryPeriod,
		metricsPort:              DefaultMetricsPort,
		metricsAddress:           DefaultMetricsAddress,
		metricsPath:              DefaultMetricsPath,
		addFinalizer:             true,
		claimIntent:              true,
		logger:                   discardLogger(),
		clock:                    clock.RealClock{},
	}
}

// complete checks the options against each other and sets defaults that depend on others.
func (s *settings) complete(provisionerName string) error {
	if s.leaderElection {
		if s.leaseDuration <= s.renewDeadline {
			return fmt.Errorf("option LeaseDuration (%v) must be greater than RenewDeadline (%v)",
				s.leaseDuration, s.renewDeadline)
		}
		least := time.Duration(leaderelection.JitterFactor * float64(s.retryPeriod))
		if s.renewDeadline <= least {
			return fmt.Errorf("option RenewDeadline (%v) must be greater than %v times RetryPeriod (%v)",
				s.renewDeadline, leaderelection.JitterFactor, s.retryPeriod)
		}
		if s.leaderNamespace == "" {
			s.leaderNamespace = leader.OwnNamespace()
		}
	}
	if s.saveBackoff == nil && s.saveLimiter == nil {
		s.saveBackoff = &wait.Backoff{
			Duration: orDefault(s.saveInterval, DefaultCreateProvisionedPVInterval),
			Factor:   1,
			Steps:    orDefault(s.saveRetries, DefaultCreateProvisionedPVRetryCount),
		}
	}
	s.intentOwned = s.leaderElection || s.intentFinalizer != ""
	if s.intentFinalizer == "" {
		s.intentFinalizer = intentFinalizerFor(provisionerName)
	}
	if errs := content.IsLabelKey(s.intentFinalizer); len(errs) > 0 {
		return fmt.Errorf("intent finalizer %q: %s; choose one with the option IntentFinalizer",
			s.intentFinalizer, strings.Join(errs, "; "))
	}
	return nil
}

// newLimiter returns the limiter of one kind of object. Claims and volumes have one each, so that many deletions do not delay
// claims.
func (s *settings) newLimiter() workqueue.RateLimiter {
	limiter := s.limiter
	if limiter == nil {
		limiter = s.defaultLimiter()
	}
	if s.retryIntervalMax > 0 {
		return cappedLimiter{RateLimiter: limiter, longest: s.retryIntervalMax}
	}
	return limiter
}

// cappedLimiter is a limiter whose delays have an upper bound.
type cappedLimiter struct {
	workqueue.RateLimiter
	longest time.Duration
}

// When implements workqueue.RateLimiter.
func (l cappedLimiter) When(item any) time.Duration { return min(l.RateLimiter.When(item), l.longest) }

func (s *settings) defaultLimiter() workqueue.RateLimiter {
	const (
		first    = 15 * time.Second
		longest  = 1000 * time.Second
		perSec   = 10
		capacity = 100
	)
	bucket := &workqueue.TypedBucketRateLimiter[any]{Limiter: rate.NewLimiter(perSec, capacity)}
	if !s.exponential {
		return workqueue.NewTypedMaxOfRateLimiter[any](
			workqueue.NewTypedItemExponentialFailureRateLimiter[any](first, first), bucket)
	}
	return workqueue.NewTypedMaxOfRateLimiter[any](
		workqueue.NewTypedItemExponentialFailureRateLimiter[any](first, longest), bucket)
}

// saveOptionsAgree returns an error if the save options exclude each other.
func (s *settings) saveOptionsAgree() error {
	linear := s.saveRetries != 0 || s.saveInterval != 0
	switch {
	case s.saveLimiter != nil && s.saveBackoff != nil:
		return errors.New("options CreateProvisionedPVLimiter and CreateProvisionedPVBackoff exclude each other")
	case s.saveLimiter != nil && linear:
		return errors.New("options CreateProvisionedPVLimiter and " +
			"CreateProvisionedPVInterval/CreateProvisionedPVRetryCount exclude each other")
	case s.saveBackoff != nil && linear:
		return errors.New("options CreateProvisionedPVBackoff and " +
			"CreateProvisionedPVInterval/CreateProvisionedPVRetryCount exclude each other")
	}
	return nil
}

// intentFinalizerFor derives the name of the finalizer from the provisioner's.
func intentFinalizerFor(provisionerName string) string {
	const longest = 63
	name := strings.ReplaceAll(provisionerName, "/", "_")
	if len(name) > longest {
		name = name[len(name)-longest:]
	}
	return "intent.provision.berth.dev/" + strings.Trim(name, "-_.")
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}
