package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/nftwatch"
)

// lockSeconds is how long iptables waits for another iptables.
const lockSeconds = "5"

// exitBusy is the exit code of iptables when it could not get its lock, or memory. It says nothing about whether it works here.
const exitBusy = 4

// busyDelay is the pause after that.
const busyDelay = time.Second

// Deps holds what a Keeper uses. All may be nil.
type Deps struct {
	// Run runs a program and returns its output; nil executes it.
	Run func(ctx context.Context, program string, args ...string) (output []byte, err error)
	// Watch is that of nftwatch.Deps.
	Watch  func(ctx context.Context, concerns func(nftwatch.Change) bool, started, changed func()) error
	Clock  clock.Clock
	Logger *slog.Logger
}

// Config says what a Keeper keeps.
type Config struct {
	// Name says in the log what the rules are: "the kubelet's chains".
	Name string
	// IPv4 and IPv6 are the rules of each family. One without chains is left alone.
	IPv4, IPv6 Rules
	// Prepare is called before the first chain is made, again after a failure; nil does nothing.
	Prepare func(ctx context.Context) error
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
	// BeforeRest is after all other rules that may drop or reject, but before one that drops or rejects whatever reaches it. A rule
	// that is elsewhere is moved, also when another program adds one behind it. The rule must have a target alone.
	BeforeRest
)

// Keeper keeps chains and rules.
type Keeper struct {
	deps     Deps
	config   Config
	families []family
	prepared bool // Config.Prepare has succeeded
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
	return &Keeper{deps: deps, config: config}
}

func run(ctx context.Context, program string, args ...string) ([]byte, error) {
	return exec.CommandContext(ctx, program, args...).CombinedOutput()
}

// Start makes the chains and rules and makes them again when they are removed, until ctx ends. They stay then. On a machine
// without a working iptables it waits until one is installed.
func (k *Keeper) Start(ctx context.Context) error {
	if !k.await(ctx) {
		return nil
	}
	return nftwatch.Keep(ctx, nftwatch.Deps{Watch: k.deps.Watch, Clock: k.deps.Clock, Logger: k.deps.Logger}, nftwatch.Kept{
		Name: k.config.Name, Concerns: k.config.concerns, Ensure: k.ensure, HasNoEvents: k.anyLegacy(),
	})
}

func (k *Keeper) anyLegacy() bool {
	for _, f := range k.families {
		if f.legacy {
			return true
		}
	}
	return false
}

// find returns the families whose iptables works: the program exists, and the kernel has its tables. It fails if it cannot know that.
func (k *Keeper) find(ctx context.Context) ([]family, error) {
	var found []family
	for _, f := range []family{{program: "iptables", rules: k.config.IPv4}, {program: "ip6tables", rules: k.config.IPv6}} {
		if len(f.rules.Chains) == 0 {
			continue
		}
		version, err := k.deps.Run(ctx, f.program, "--version")
		if err == nil {
			err = k.checkTables(ctx, f)
		}
		var exit interface{ ExitCode() int }
		if errors.As(err, &exit) && exit.ExitCode() == exitBusy {
			return nil, err
		}
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			k.deps.Logger.Info("iptables does not work; leaving out its chains", "program", f.program, "error", err)
			continue
		}
		f.legacy = isLegacy(version)
		found = append(found, f)
	}
	return found, nil
}

// IsLegacy reports whether the machine has an iptables whose rules cause no events of the kernel.
func IsLegacy(ctx context.Context) bool {
	version, err := run(ctx, "iptables", "--version")
	return err == nil && isLegacy(version)
}

func isLegacy(version []byte) bool { return !strings.Contains(string(version), "nf_tables") }

// concerns reports whether a change concerns what is kept.
func (c Config) concerns(change nftwatch.Change) bool {
	var rules Rules
	switch change.Family {
	case unix.NFPROTO_IPV4:
		rules = c.IPv4
	case unix.NFPROTO_IPV6:
		rules = c.IPv6
	}
	matches := func(chain Chain) bool {
		return chain.Table == change.Table && (change.Chain == "" || chain.Name == change.Chain)
	}
	if change.Added {
		return slices.ContainsFunc(rules.Rules, func(r Rule) bool { return r.Place == BeforeRest && matches(r.Chain) })
	}
	return slices.ContainsFunc(rules.Chains, matches) || slices.ContainsFunc(rules.Rules, func(r Rule) bool { return matches(r.Chain) })
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
	if k.config.Prepare != nil && !k.prepared {
		if err := k.config.Prepare(ctx); err != nil {
			return err
		}
		k.prepared = true
	}
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
