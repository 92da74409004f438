package iptables

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
	// legacyPeriod is how often the rules of iptables-legacy are checked: its kernel interface has no events.
	legacyPeriod = time.Minute
	// initialRetryDelay and maxRetryDelay bound the wait after a failure.
	initialRetryDelay = time.Second
	maxRetryDelay     = 5 * time.Minute
)

// Deps holds what a Keeper uses. All may be nil.
type Deps struct {
	// Run runs a program and returns its output; nil executes it.
	Run func(ctx context.Context, program string, args ...string) (output []byte, err error)
	// Watch calls changed after each deletion of a chain or rule that concerns those to keep, until ctx ends, and once when it
	// watches; nil receives the events of nf_tables from the kernel.
	Watch  func(ctx context.Context, changed func()) error
	Clock  clock.Clock
	Logger *slog.Logger
}

// Config says what a Keeper keeps.
type Config struct {
	// Name says in the log what the rules are: "the kubelet's chains".
	Name string
	// IPv4 and IPv6 are the rules of each family. One without chains is left alone.
	IPv4, IPv6 Rules
}

// Rules are chains and rules of one family.
type Rules struct {
	// Chains are created before the rules.
	Chains []Chain
	// Rules are added in this order.
	Rules []Rule
}

// Chain is a chain of a table.
type Chain struct{ Table, Name string }

// Rule is a rule of a chain.
type Rule struct {
	Chain
	Place Place
	// Match is the rule as the arguments of iptables, its target included.
	Match []string
}

// Place is where in its chain a missing rule is added.
type Place int

const (
	// Last is after all other rules.
	Last Place = iota
	// First is before all other rules.
	First
	// BeforeRest is after all other rules, but before one that drops or rejects whatever reaches it. A rule that is behind such
	// a one is moved. The rule must have a target alone.
	BeforeRest
)

// Keeper keeps chains and rules.
type Keeper struct {
	deps     Deps
	config   Config
	families []family
	changed  wakeup.Signal
}

// family is a version of the Internet Protocol whose iptables works here.
type family struct {
	program string
	legacy  bool // its kernel interface is not nf_tables
	rules   Rules
}

// New returns a Keeper.
func New(deps Deps, config Config) *Keeper {
	if deps.Run == nil {
		deps.Run = run
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{deps: deps, config: config, changed: wakeup.NewSignal()}
	if deps.Watch == nil {
		k.deps.Watch = k.watchTables
	}
	return k
}

func run(ctx context.Context, program string, args ...string) ([]byte, error) {
	return exec.CommandContext(ctx, program, args...).CombinedOutput()
}

// Start makes the chains and rules and makes them again when they are removed, until ctx ends. They stay then. On a machine
// without a working iptables it only waits for that.
func (k *Keeper) Start(ctx context.Context) error {
	k.families = k.find(ctx)
	if len(k.families) == 0 {
		k.deps.Logger.Info("no working iptables or ip6tables on this machine: nothing is kept there", "what", k.config.Name)
		<-ctx.Done()
		return nil
	}
	watchCtx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer contain.Recover("iptables.Start", "")
		defer close(ended)
		if err := k.deps.Watch(watchCtx, k.changed.Notify); err != nil && watchCtx.Err() == nil {
			k.deps.Logger.Warn("cannot watch the packet filter; checking it periodically", "for", k.config.Name, "error", err)
			k.changed.Notify()
		}
	}()
	defer func() { stop(); <-ended }()
	return k.keep(ctx, func() bool {
		select {
		case <-ended:
			return true
		default:
			return k.anyLegacy()
		}
	})
}

// keep ensures the rules after each change until ctx ends, and periodically if changes cause no event.
func (k *Keeper) keep(ctx context.Context, periodically func() bool) error {
	retry := time.Duration(0)
	for {
		wait := time.Duration(0)
		if err := k.ensure(ctx); err != nil && ctx.Err() == nil {
			retry = min(max(2*retry, initialRetryDelay), maxRetryDelay)
			wait = retry
			k.deps.Logger.Warn("failed to make rules in the packet filter; retrying", "what", k.config.Name, "error", err, "retry", retry)
		} else {
			retry = 0
			if periodically() {
				wait = legacyPeriod
			}
		}
		if !k.sleep(ctx, wait) {
			return nil
		}
	}
}

// sleep waits for a change or, if wait is not zero, for that time. It returns false when ctx has ended.
func (k *Keeper) sleep(ctx context.Context, wait time.Duration) bool {
	var due <-chan time.Time
	if wait > 0 {
		timer := k.deps.Clock.NewTimer(wait)
		defer timer.Stop()
		due = timer.C()
	}
	select {
	case <-ctx.Done():
		return false
	case <-k.changed.C():
	case <-due:
	}
	return true
}

func (k *Keeper) anyLegacy() bool {
	for _, f := range k.families {
		if f.legacy {
			return true
		}
	}
	return false
}

// find returns the families whose iptables works: the program exists, and the kernel has its tables.
func (k *Keeper) find(ctx context.Context) []family {
	var found []family
	for _, f := range []family{{program: "iptables", rules: k.config.IPv4}, {program: "ip6tables", rules: k.config.IPv6}} {
		if len(f.rules.Chains) == 0 {
			continue
		}
		version, err := k.deps.Run(ctx, f.program, "--version")
		if err == nil {
			err = k.checkTables(ctx, f)
		}
		if err != nil {
			k.deps.Logger.Info("iptables does not work; leaving out its chains", "program", f.program, "error", err)
			continue
		}
		f.legacy = !strings.Contains(string(version), "nf_tables")
		found = append(found, f)
	}
	return found
}

// checkTables checks that the kernel has the tables of the family's chains.
func (k *Keeper) checkTables(ctx context.Context, f family) error {
	checked := make(map[string]bool)
	for _, c := range f.rules.Chains {
		if checked[c.Table] {
			continue
		}
		if _, err := k.iptables(ctx, f, c.Table, "-S", "OUTPUT"); err != nil { // a chain of all tables
			return err
		}
		checked[c.Table] = true
	}
	return nil
}

// ensure makes what is missing of the chains and rules.
func (k *Keeper) ensure(ctx context.Context) error {
	var errs []error
	for _, f := range k.families {
		errs = append(errs, k.ensureFamily(ctx, f))
	}
	return errors.Join(errs...)
}

func (k *Keeper) ensureFamily(ctx context.Context, f family) error {
	created := make(map[Chain]bool)
	for _, c := range f.rules.Chains {
		if _, err := k.iptables(ctx, f, c.Table, "-S", c.Name); err == nil {
			continue
		}
		if _, err := k.iptables(ctx, f, c.Table, "-N", c.Name); err != nil {
			return fmt.Errorf("create chain %s of table %s: %w", c.Name, c.Table, err)
		}
		created[c] = true
	}
	for _, r := range f.rules.Rules {
		if err := k.ensureRule(ctx, f, r, created[r.Chain]); err != nil {
			return fmt.Errorf("add rule to chain %s of table %s: %w", r.Name, r.Table, err)
		}
	}
	return nil
}

// ensureRule adds the rule if it is missing. In a new chain it is.
func (k *Keeper) ensureRule(ctx context.Context, f family, r Rule, isNew bool) error {
	if r.Place == BeforeRest {
		return k.placeBeforeRest(ctx, f, r)
	}
	if !isNew {
		if _, err := k.iptables(ctx, f, r.Table, append([]string{"-C", r.Name}, r.Match...)...); err == nil {
			return nil
		}
	}
	add := "-A"
	if r.Place == First {
		add = "-I"
	}
	_, err := k.iptables(ctx, f, r.Table, append([]string{add, r.Name}, r.Match...)...)
	return err
}

// iptables runs the family's program for a table.
func (k *Keeper) iptables(ctx context.Context, f family, table string, args ...string) (output string, err error) {
	data, err := k.deps.Run(ctx, f.program, append([]string{"-w", lockSeconds, "-t", table}, args...)...)
	if err != nil {
		return "", fmt.Errorf("%s -t %s %s: %w: %s", f.program, table, strings.Join(args, " "), err, strings.TrimSpace(string(data)))
	}
	return string(data), nil
}
