package packetfilter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// lockSeconds is how long iptables waits for another iptables.
	lockSeconds = "5"
	// legacyPeriod is how often the chains of iptables-legacy are checked: its kernel interface has no events.
	legacyPeriod = time.Minute
	// initialRetryDelay and maxRetryDelay bound the wait after a failure.
	initialRetryDelay = time.Second
	maxRetryDelay     = 5 * time.Minute
)

// Deps holds what a Manager uses. All may be nil.
type Deps struct {
	// Run runs a program and returns its output; nil executes it.
	Run func(ctx context.Context, program string, args ...string) (output []byte, err error)
	// Watch calls changed after each deletion of a chain or rule of iptables that concerns the kubelet's, until ctx ends, and
	// once when it watches; nil receives the events of nf_tables from the kernel.
	Watch  func(ctx context.Context, changed func()) error
	Clock  clock.Clock
	Logger *slog.Logger
}

// Manager keeps the chains.
type Manager struct {
	deps     Deps
	families []family
	changed  wakeup.Signal
}

// family is a version of the Internet Protocol whose iptables works here.
type family struct {
	program string
	legacy  bool // its kernel interface is not nf_tables
	chains  []chain
	rules   []rule
}

// New returns a Manager.
func New(deps Deps) *Manager {
	if deps.Run == nil {
		deps.Run = run
	}
	if deps.Watch == nil {
		deps.Watch = watchTables
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{deps: deps, changed: wakeup.NewSignal()}
}

func run(ctx context.Context, program string, args ...string) ([]byte, error) {
	return exec.CommandContext(ctx, program, args...).CombinedOutput()
}

// Start makes the chains and makes them again when they are removed, until ctx ends. They stay then. On a machine without a
// working iptables it does nothing: no program there relies on the chains.
func (m *Manager) Start(ctx context.Context) error {
	m.families = m.find(ctx)
	if len(m.families) == 0 {
		m.deps.Logger.Info("no working iptables or ip6tables on this machine: the kubelet's chains are not made",
			"chains", strings.Join([]string{HintChain, FirewallChain}, ", "))
		return nil
	}
	watchCtx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer contain.Recover("packetfilter.Start", "")
		defer close(ended)
		if err := m.deps.Watch(watchCtx, m.changed.Notify); err != nil && watchCtx.Err() == nil {
			m.deps.Logger.Warn("cannot watch the packet filter; checking the kubelet's chains periodically", "error", err)
			m.changed.Notify()
		}
	}()
	defer func() { stop(); <-ended }()
	return m.keep(ctx, func() bool {
		select {
		case <-ended:
			return true
		default:
			return m.anyLegacy()
		}
	})
}

// keep ensures the chains after each change until ctx ends, and periodically if changes cause no event.
func (m *Manager) keep(ctx context.Context, periodically func() bool) error {
	retry := time.Duration(0)
	for {
		wait := time.Duration(0)
		if err := m.ensure(ctx); err != nil && ctx.Err() == nil {
			retry = min(max(2*retry, initialRetryDelay), maxRetryDelay)
			wait = retry
			m.deps.Logger.Warn("failed to make the kubelet's chains in the packet filter; retrying", "error", err, "retry", retry)
		} else {
			retry = 0
			if periodically() {
				wait = legacyPeriod
			}
		}
		if !m.sleep(ctx, wait) {
			return nil
		}
	}
}

// sleep waits for a change or, if wait is not zero, for that time. It returns false when ctx has ended.
func (m *Manager) sleep(ctx context.Context, wait time.Duration) bool {
	var due <-chan time.Time
	if wait > 0 {
		timer := m.deps.Clock.NewTimer(wait)
		defer timer.Stop()
		due = timer.C()
	}
	select {
	case <-ctx.Done():
		return false
	case <-m.changed.C():
	case <-due:
	}
	return true
}

func (m *Manager) anyLegacy() bool {
	for _, f := range m.families {
		if f.legacy {
			return true
		}
	}
	return false
}

// find returns the families whose iptables works: the program exists, and the kernel has its tables.
func (m *Manager) find(ctx context.Context) []family {
	var found []family
	for _, f := range []family{
		{program: "iptables", chains: append(commonChains(), localnetChains()...), rules: localnetRules()},
		{program: "ip6tables", chains: commonChains()},
	} {
		version, err := m.deps.Run(ctx, f.program, "--version")
		if err == nil {
			err = m.iptables(ctx, f, "nat", "-S", "POSTROUTING")
		}
		if err != nil {
			m.deps.Logger.Info("iptables does not work; leaving out its chains", "program", f.program, "error", err)
			continue
		}
		f.legacy = !strings.Contains(string(version), "nf_tables")
		found = append(found, f)
	}
	return found
}

// ensure makes what is missing of the chains and rules.
func (m *Manager) ensure(ctx context.Context) error {
	var errs []error
	for _, f := range m.families {
		errs = append(errs, m.ensureFamily(ctx, f))
	}
	return errors.Join(errs...)
}

func (m *Manager) ensureFamily(ctx context.Context, f family) error {
	for _, c := range f.chains {
		if m.iptables(ctx, f, c.table, "-S", c.name) == nil {
			continue
		}
		if err := m.iptables(ctx, f, c.table, "-N", c.name); err != nil {
			return fmt.Errorf("create chain %s of table %s: %w", c.name, c.table, err)
		}
	}
	for _, r := range f.rules {
		if m.iptables(ctx, f, r.table, append([]string{"-C", r.name}, r.match...)...) == nil {
			continue
		}
		add := "-A"
		if r.first {
			add = "-I"
		}
		if err := m.iptables(ctx, f, r.table, append([]string{add, r.name}, r.match...)...); err != nil {
			return fmt.Errorf("add rule to chain %s of table %s: %w", r.name, r.table, err)
		}
	}
	return nil
}

// iptables runs the family's program for a table.
func (m *Manager) iptables(ctx context.Context, f family, table string, args ...string) error {
	output, err := m.deps.Run(ctx, f.program, append([]string{"-w", lockSeconds, "-t", table}, args...)...)
	if err != nil {
		return fmt.Errorf("%s -t %s %s: %w: %s", f.program, table, strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}
