package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// ErrLost is returned when the Lease could not be renewed in time, so that another replica may be leading.
var ErrLost = errors.New("leadership lost")

// Deps are the dependencies of an Elector.
type Deps struct {
	// Client writes the Lease. It should have a rate limit of its own: see NewClient. It is required.
	Client coordinationv1.LeasesGetter
	// Logger logs the start of the term. The default discards.
	Logger *slog.Logger
	// Registerer registers the gauge leader_election_master_status while Run runs. By default there is none.
	Registerer prometheus.Registerer
}

// Config is the configuration of an Elector.
type Config struct {
	// Namespace and Name are those of the Lease. Both are required.
	Namespace, Name string
	// Identity identifies the replica; each must have a different one. It is required.
	Identity string
	// LeaseDuration is how long others wait after the last renewal that they saw before they take over. The default
	// is 15 s.
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader tries to renew before it gives up. The default is 10 s.
	RenewDeadline time.Duration
	// RetryPeriod is the time from one attempt, to take or to renew, to the next. The default is 2 s.
	RetryPeriod time.Duration
}

// NewClient returns a client for Leases with connections and a rate limit of its own, whose requests time out before the
// Lease expires.
func NewClient(config *rest.Config) (coordinationv1.LeasesGetter, error) {
	own := rest.CopyConfig(config)
	own.RateLimiter = nil
	own.QPS, own.Burst = 10, 20
	own.Timeout = 5 * time.Second
	client, err := coordinationv1.NewForConfig(rest.AddUserAgent(own, "leader-election"))
	if err != nil {
		return nil, fmt.Errorf("make client for leader election: %w", err)
	}
	return client, nil
}

// Elector takes part in one election.
type Elector struct {
	deps    Deps
	config  Config
	leading atomic.Bool
}

// New returns an Elector. Run takes part in the election.
func New(deps Deps, config Config) (*Elector, error) {
	if deps.Client == nil {
		return nil, errors.New("leader: Deps.Client is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	for _, field := range []struct{ name, value string }{
		{"Namespace", config.Namespace}, {"Name", config.Name}, {"Identity", config.Identity},
	} {
		if field.value == "" {
			return nil, fmt.Errorf("leader: Config.%s is required", field.name)
		}
	}
	for _, field := range []struct {
		value *time.Duration
		or    time.Duration
	}{
		{&config.LeaseDuration, 15 * time.Second},
		{&config.RenewDeadline, 10 * time.Second},
		{&config.RetryPeriod, 2 * time.Second},
	} {
		if *field.value == 0 {
			*field.value = field.or
		}
	}
	e := &Elector{deps: deps, config: config}
	if _, err := leaderelection.NewLeaderElector(e.election(leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {},
	})); err != nil {
		return nil, fmt.Errorf("leader: configure election %q: %w", config.Name, err)
	}
	return e, nil
}

// IsLeading returns whether the work runs. A replica that waits for the Lease is ready to take over, but does not lead.
func (e *Elector) IsLeading() bool { return e.leading.Load() }

// gauge returns the metric of the leader's state, under the name that Kubernetes' own components use.
func (e *Elector) gauge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "leader_election_master_status", Help: "1 while this process leads by the Lease of that name, 0 while it waits for it.",
		ConstLabels: prometheus.Labels{"name": e.config.Name},
	}, func() float64 {
		if e.IsLeading() {
			return 1
		}
		return 0
	})
}

func (e *Elector) election(callbacks leaderelection.LeaderCallbacks) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.config.Namespace, Name: e.config.Name},
			Client:     e.deps.Client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.config.Identity},
		},
		LeaseDuration: e.config.LeaseDuration,
		RenewDeadline: e.config.RenewDeadline,
		RetryPeriod:   e.config.RetryPeriod,
		Callbacks:     callbacks,
		Name:          e.config.Name,
	}
}

// Run waits until this copy leads, then calls work once. The context of work ends when ctx does or the Lease is lost;
// Run returns after work has. It returns what work returned, or an error that wraps ErrLost if the Lease was lost.
// While work is still ending the Lease is kept; then it is given up, so that another copy can take over at once.
func (e *Elector) Run(ctx context.Context, work func(context.Context) error) error {
	if e.deps.Registerer != nil {
		gauge := e.gauge()
		if err := e.deps.Registerer.Register(gauge); err != nil {
			return fmt.Errorf("run leader elector %q: register metrics: %w", e.config.Name, err)
		}
		defer e.deps.Registerer.Unregister(gauge)
	}
	election, withdraw := context.WithCancel(context.WithoutCancel(ctx))
	defer withdraw()
	t := &term{withdraw: withdraw, result: make(chan error, 1)}
	config := e.election(leaderelection.LeaderCallbacks{
		OnStartedLeading: func(leading context.Context) {
			working, end := context.WithCancel(leading)
			defer end()
			defer context.AfterFunc(ctx, end)()
			e.deps.Logger.Info("leading", "lease", e.config.Name, "identity", e.config.Identity)
			e.leading.Store(true)
			err := work(working)
			e.leading.Store(false)
			// Only finish cancels the election of a leader. If leading has ended before, the renewal failed.
			if leading.Err() != nil && election.Err() == nil {
				err = errors.Join(fmt.Errorf("renew lease %s/%s within %s: %w",
					e.config.Namespace, e.config.Name, e.config.RenewDeadline, ErrLost), err)
			}
			t.finish(err)
		},
		OnStoppedLeading: func() {},
	})
	config.Lock = &notifyingLock{Interface: config.Lock, acquired: t.markLeading}
	elector, err := leaderelection.NewLeaderElector(config)
	if err != nil {
		return fmt.Errorf("run leader elector %q: %w", e.config.Name, err)
	}
	defer context.AfterFunc(ctx, t.withdrawUnlessLeading)()
	elector.Run(klog.NewContext(election, logr.FromSlogHandler(e.deps.Logger.Handler())))
	if !t.isLeading() {
		return nil // ctx ended before it was this copy's turn
	}
	err = <-t.result
	if releaseErr := e.release(context.WithoutCancel(ctx), config.Lock); releaseErr != nil {
		e.deps.Logger.Warn("others lead only when the lease is over", "lease", e.config.Name, "error", releaseErr)
	}
	return err
}

// release gives the Lease up, unless another copy has it. ReleaseOnCancel of client-go would do so before the work has ended, and,
// after a renewal that failed, before the work's context ends.
func (e *Elector) release(ctx context.Context, lock resourcelock.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, e.config.RenewDeadline)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if apierrors.IsNotFound(err) || err == nil && record.HolderIdentity != e.config.Identity {
		return nil
	}
	if err == nil {
		record.HolderIdentity, record.LeaseDurationSeconds = "", 1
		err = lock.Update(ctx, *record)
	}
	if err != nil {
		return fmt.Errorf("give up lease %s/%s: %w", e.config.Namespace, e.config.Name, err)
	}
	return nil
}

// term is one time of waiting and leading.
type term struct {
	withdraw context.CancelFunc
	result   chan error

	mu      sync.Mutex // guards leading
	leading bool
}

// markLeading notes that the Lease was acquired; from now on the work ends the term.
func (t *term) markLeading() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leading = true
}

func (t *term) isLeading() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leading
}

// withdrawUnlessLeading withdraws from the election unless it was won.
func (t *term) withdrawUnlessLeading() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.leading {
		t.withdraw()
	}
}

// finish ends the term with the result of the work. The result is there before the election ends.
func (t *term) finish(err error) {
	t.result <- err
	t.withdraw()
}

// notifyingLock reports when the Lease is acquired. The elector starts the work in a goroutine and does not wait for it,
// but it records this event before, in its own.
type notifyingLock struct {
	resourcelock.Interface
	acquired func()
}

// RecordEvent implements resourcelock.Interface.
func (l *notifyingLock) RecordEvent(event string) {
	if event == "became leader" {
		l.acquired()
	}
	l.Interface.RecordEvent(event)
}
