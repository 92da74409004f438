package claims

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/internal/wakeup"
)

// Deps holds what a Manager needs. Clock and Logger may be nil.
type Deps struct {
	// Client reads ResourceClaims and deletes ResourceSlices of drivers that are gone.
	Client kubernetes.Interface
	// OnHealthChanged is called for each Pod of whose devices one has another health than before. It must not block.
	OnHealthChanged func(uid types.UID)
	Clock           clock.Clock
	Logger          *slog.Logger
}

// Config holds the values of a Manager.
type Config struct {
	// Root is the kubelet's directory, NodeName the node's name.
	Root, NodeName string
	// NoAPIServer says that the node has none, and so no ResourceSlices.
	NoAPIServer bool
}

// Manager prepares and unprepares claims. It is safe for concurrent use. It has many methods because claims, drivers and the health of
// devices all concern the same claims.
type Manager struct {
	deps    Deps
	config  Config
	metrics *metrics
	wake    wakeup.Signal // set when orphans may be unprepared, or lost claims prepared

	mu      sync.Mutex // guards all below
	claims  map[key]*claim
	drivers map[string]*driver
	// busy are claims of which a driver is being asked; the channel is closed when it has responded.
	busy map[key]chan struct{}
	// orphans are Pods that ended while no kubelet ran, and whose claims are still prepared.
	orphans map[types.UID]bool
	// lost are Pods whose claims a damaged state file may have had, nil if there was none.
	lost map[types.UID]*corev1.Pod
	// running is the context of the watches of health and of removals of ResourceSlices, nil before Start; watches counts these, and the
	// watches of connections.
	running context.Context //nolint:containedctx // drivers register by calls that end sooner
	watches sync.WaitGroup
}

// New returns a Manager. Open comes before all other methods.
func New(deps Deps, config Config) (*Manager, error) {
	if deps.Client == nil {
		return nil, errors.New("claims: Deps.Client is required")
	}
	if deps.OnHealthChanged == nil {
		return nil, errors.New("claims: Deps.OnHealthChanged is required")
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		deps: deps, config: config, metrics: newMetrics(), wake: wakeup.NewSignal(), claims: map[key]*claim{}, drivers: map[string]*driver{},
		busy: map[key]chan struct{}{}, orphans: map[types.UID]bool{},
	}, nil
}

func (m *Manager) stateFile() string { return filepath.Join(m.config.Root, StateFile) }

// Open reads the state file. A damaged one is set aside; what that means is with [Manager.Readmit].
func (m *Manager) Open() error {
	held, err := readState(m.stateFile())
	damaged := errors.Is(err, statefile.ErrDamaged)
	switch {
	case damaged:
		statefile.SetAside(m.deps.Logger, m.stateFile(), err, "the ResourceClaims of Pods on this node are prepared again; drivers keep what they "+
			"have prepared for Pods that ended while no kubelet ran")
	case err != nil:
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if damaged {
		m.lost = map[types.UID]*corev1.Pod{}
	}
	m.claims = held
	return nil
}

// save writes the state file. The caller holds mu.
func (m *Manager) save() error { return writeState(m.stateFile(), m.claims) }

// lock waits until no driver is asked about the claim, and keeps others from asking until unlock is called.
func (m *Manager) lock(ctx context.Context, k key) (unlock func(), err error) {
	for {
		m.mu.Lock()
		other := m.busy[k]
		if other == nil {
			mine := make(chan struct{})
			m.busy[k] = mine
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.busy, k)
				m.mu.Unlock()
				close(mine)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the driver of ResourceClaim %s/%s: %w", k.namespace, k.name, ctx.Err())
		}
	}
}

func (c *claim) reference() *draapi.Claim {
	return &draapi.Claim{Namespace: c.Namespace, Uid: string(c.ClaimUID), Name: c.ClaimName}
}

// Unprepare has the drivers unprepare the claims that no other Pod uses. A Pod that has none is no error.
func (m *Manager) Unprepare(ctx context.Context, uid types.UID) error {
	if err := m.recall(ctx, uid); err != nil {
		return err
	}
	used := m.usedBy(uid)
	if len(used) == 0 {
		return nil
	}
	start := m.deps.Clock.Now()
	var errs []error
	for _, k := range used {
		errs = append(errs, m.unprepare(ctx, k, uid))
	}
	err := errors.Join(errs...)
	m.metrics.observe("UnprepareResources", m.deps.Clock.Since(start), err)
	return err
}

func (m *Manager) usedBy(uid types.UID) []key {
	m.mu.Lock()
	defer m.mu.Unlock()
	var used []key
	for k, c := range m.claims {
		if c.PodUIDs.Has(string(uid)) {
			used = append(used, k)
		}
	}
	return used
}

func (m *Manager) unprepare(ctx context.Context, k key, uid types.UID) error {
	unlock, err := m.lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := m.dropUser(k, uid)
	if c == nil || err != nil {
		return err
	}
	for _, name := range c.driverNames() {
		if err := m.askBack(ctx, name, c); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.claims, k)
	return m.save()
}

// dropUser takes the Pod off a claim that others use, too; it returns one that is the Pod's alone. The caller has locked the claim.
func (m *Manager) dropUser(k key, uid types.UID) (*claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.claims[k]
	switch {
	case c == nil || !c.PodUIDs.Has(string(uid)):
		return nil, nil
	case c.PodUIDs.Len() == 1:
		return c, nil
	}
	c.PodUIDs.Delete(string(uid))
	return nil, m.save()
}

// askBack has a driver unprepare a claim.
func (m *Manager) askBack(ctx context.Context, name string, c *claim) error {
	client, err := m.client(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := client.NodeUnprepareResources(ctx, &draapi.NodeUnprepareResourcesRequest{Claims: []*draapi.Claim{c.reference()}})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources of driver %s: %w", name, err)
	}
	result := resp.Claims[string(c.ClaimUID)]
	if result == nil {
		return fmt.Errorf("NodeUnprepareResources of driver %s skipped ResourceClaim %s", name, c.ClaimName)
	}
	if result.Error != "" {
		return fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", c.ClaimName, result.Error)
	}
	return nil
}

// Start unprepares the claims of Pods that ended while no kubelet ran, removes the ResourceSlices of drivers that do not respond, and
// watches the health of their devices, until ctx ends.
func (m *Manager) Start(ctx context.Context) error {
	m.watchRegistered(ctx)
	defer m.watches.Wait()
	defer m.closeDrivers()
	for {
		select {
		case <-m.wake.C():
		case <-ctx.Done():
			return nil
		}
		m.prepareLost(ctx)
		m.unprepareOrphans(ctx)
	}
}

// watchRegistered watches the drivers that were registered before Start.
func (m *Manager) watchRegistered(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = ctx
	for name, d := range m.drivers {
		m.watchHealth(name, d)
		m.removeSlicesUnlessResponding(name, d)
	}
	if !m.config.NoAPIServer {
		m.removeSlices(ctx, "", m.slicesOfUnknown, func() {})
	}
}

// callTimeout bounds one request to a driver, which may wait for hardware.
const callTimeout = 45 * time.Second
