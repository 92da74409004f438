package iptables

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/nftwatch"
	"github.com/berth-dev/berth/internal/testnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConfig has a chain in two tables of each family, and rules in one of them for IPv4.
func testConfig() Config {
	ours := []Chain{{"mangle", "OURS"}, {"filter", "OURS"}}
	return Config{
		Name: "the test's rules",
		IPv4: Rules{Chains: ours, Rules: []Rule{
			{Chain{"filter", "OURS"}, Last, []string{"-i", "pods", "-j", "ACCEPT"}},
			{Chain{"filter", "INPUT"}, First, []string{"-j", "OURS"}},
		}},
		IPv6: Rules{Chains: ours},
	}
}

// start runs a Keeper until the test ends.
func start(t *testing.T, deps Deps, config Config) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(deps, config).Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
}

// TestMachineWithoutIPTables says so once, and does nothing.
func TestMachineWithoutIPTables(t *testing.T) {
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, New(Deps{
		Run: func(context.Context, string, ...string) ([]byte, error) { return nil, exec.ErrNotFound },
		Watch: func(context.Context, func(nftwatch.Change) bool, func(), func()) error {
			require.Fail(t, "nothing to watch")
			return nil
		},
		Logger: slog.New(slog.NewTextHandler(writerFunc(func(line []byte) { log.Write(line); cancel() }), nil)),
	}, testConfig()).Start(ctx))
	require.Equal(t, 1, strings.Count(log.String(), "no working iptables or ip6tables on this machine"), log.String())
}

// TestAFamilyWithoutChainsIsLeftAlone runs no program of it.
func TestAFamilyWithoutChainsIsLeftAlone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	config := testConfig()
	config.IPv6 = Rules{}
	require.NoError(t, New(Deps{Run: func(_ context.Context, program string, _ ...string) ([]byte, error) {
		require.Equal(t, "iptables", program)
		return nil, exec.ErrNotFound
	}}, config).Start(ctx))
}

// script is an iptables that keeps chains and rules in memory.
type script struct {
	version string

	mu    sync.Mutex
	have  map[string]bool
	fails int
	made  chan string
}

func (s *script) run(_ context.Context, program string, args ...string) ([]byte, error) {
	if args[0] == "--version" {
		return []byte(s.version), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := program + " " + args[3] + " " + strings.Join(args[5:], " ")
	switch args[4] {
	case "-S", "-C":
		if !s.have[key] && args[5] != "OUTPUT" {
			return nil, errors.New("exit status 1")
		}
	default:
		if s.fails > 0 {
			s.fails--
			return []byte("busy"), errors.New("exit status 4")
		}
		s.have[key] = true
		s.made <- key
	}
	return nil, nil
}

// TestLegacyIsChecked checks the rules of iptables-legacy each minute, and retries what fails.
func TestLegacyIsChecked(t *testing.T) {
	s := &script{version: "iptables v1.8.9 (legacy)", have: map[string]bool{}, fails: 1, made: make(chan string, 100)}
	clock := testclock.NewFakeClock(time.Now())
	start(t, Deps{Run: s.run, Clock: clock, Watch: noEvents}, testConfig())
	wait := func(period time.Duration, want int) {
		require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
		clock.Step(period)
		for range want {
			<-s.made
		}
	}
	for range 2 { // IPv6 does not wait for IPv4, whose first chain has failed
		<-s.made
	}
	wait(time.Second, 4)
	s.mu.Lock()
	clear(s.have)
	s.mu.Unlock()
	wait(time.Minute, 6)
}

// TestIPTablesThatIsInstalledLaterIsUsed has a program where there was none.
func TestIPTablesThatIsInstalledLaterIsUsed(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", filepath.Join(dir, "missing")+":"+dir)
	program, called := filepath.Join(dir, "iptables"), filepath.Join(t.TempDir(), "called")
	script := "#!/bin/sh\necho \"$@\" >> " + called + "\n[ \"$5 $6\" != '-S OURS' ]\n"
	require.NoError(t, os.WriteFile(program+".new", []byte(script), 0o755))
	waits := make(chan struct{})
	logger := slog.New(slog.NewTextHandler(writerFunc(func(line []byte) {
		if strings.Contains(string(line), "no working iptables") {
			close(waits)
		}
	}), nil))
	config := testConfig()
	config.IPv6 = Rules{}
	start(t, Deps{Clock: testclock.NewFakeClock(time.Now()), Watch: noEvents, Logger: logger}, config)
	<-waits
	require.NoError(t, os.Rename(program+".new", program))
	require.Eventually(t, func() bool {
		lines, _ := os.ReadFile(called)
		return strings.Contains(string(lines), "-t filter -N OURS")
	}, time.Minute, 10*time.Millisecond)
}

// writerFunc is a function as an io.Writer.
type writerFunc func(data []byte)

func (f writerFunc) Write(data []byte) (int, error) {
	f(data)
	return len(data), nil
}

// TestChainsAreMadeAfterAPreparation that fails at first.
func TestChainsAreMadeAfterAPreparation(t *testing.T) {
	s := &script{version: "iptables v1.8.9 (nf_tables)", have: map[string]bool{}, made: make(chan string, 100)}
	clock := testclock.NewFakeClock(time.Now())
	config := testConfig()
	var calls atomic.Int32
	config.Prepare = func(context.Context) error {
		if calls.Add(1) == 1 {
			return errors.New("busy")
		}
		return nil
	}
	start(t, Deps{Run: s.run, Clock: clock, Watch: noEvents}, config)
	require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
	require.Empty(t, s.made)
	clock.Step(time.Second)
	for range 6 {
		<-s.made
	}
	require.EqualValues(t, 2, calls.Load())
}

// busy is the error of an iptables that did not get its lock.
type busy struct{ error }

func (busy) ExitCode() int { return 4 }

// TestABusyIPTablesIsNotTakenForOneThatDoesNotWork has another program hold the lock at the start.
func TestABusyIPTablesIsNotTakenForOneThatDoesNotWork(t *testing.T) {
	s := &script{version: "iptables v1.8.9 (legacy)", have: map[string]bool{}, made: make(chan string, 100)}
	clock := testclock.NewFakeClock(time.Now())
	var isFree atomic.Bool
	start(t, Deps{Clock: clock, Watch: noEvents, Run: func(ctx context.Context, program string, args ...string) ([]byte, error) {
		if args[0] != "--version" && !isFree.Load() {
			return nil, busy{errors.New("exit status 4")}
		}
		return s.run(ctx, program, args...)
	}}, testConfig())
	require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
	isFree.Store(true)
	clock.Step(busyDelay)
	for range 6 {
		<-s.made
	}
}

// TestRulesThatDropTheRestAreFound has the forms that iptables lists.
func TestRulesThatDropTheRestAreFound(t *testing.T) {
	rule := Rule{Chain{"filter", "FORWARD"}, BeforeRest, []string{"-j", "OURS"}}
	for name, test := range map[string]struct {
		listed    string
		has, rest int
	}{
		"empty":            {"-P FORWARD DROP\n", 0, 0},
		"alone":            {"-P FORWARD DROP\n-A FORWARD -j OURS\n", 1, 0},
		"DROP":             {"-P FORWARD ACCEPT\n-A FORWARD -i a -j ACCEPT\n-A FORWARD -j DROP\n-A FORWARD -j OURS\n", 3, 2},
		"REJECT":           {"-A FORWARD -j OURS\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n", 1, 2},
		"with a comment":   {"-A FORWARD -m comment --comment rest -j DROP\n", 0, 1},
		"with a quotation": {`-A FORWARD -m comment --comment "the \"rest\"" -j REJECT` + "\n", 0, 1},
		"of some packets":  {"-A FORWARD -s 10.0.0.0/8 -j DROP\n-A FORWARD -j OTHERS\n-A FORWARD -m comment --comment \"-j DROP\" -j LOG\n", 0, 0},
		"in another chain": {"-N REST\n-A FORWARD -i a -j OTHERS\n-A FORWARD -j REST\n-A FORWARD -j OURS\n-A REST -m limit --limit 3/min -j LOG --log-prefix \"[UFW] \"\n-A REST -j REJECT --reject-with icmp-port-unreachable\n", 3, 2},
		"gone to":          {"-A FORWARD -g REST\n-A REST -j DROP\n", 0, 1},
		"of some there":    {"-A FORWARD -j OTHERS\n-A OTHERS -s 10.0.0.0/8 -j DROP\n-A OTHERS -j REJECT\n", 0, 0},
		"sometimes there":  {"-A FORWARD -i a -j REST\n-A FORWARD -j EMPTY\n-A REST -j DROP\n", 0, 0},
		"a longer name":    {"-A FORWARD -j OURS-TOO\n", 0, 0},
	} {
		has, rest := parseChains(test.listed).positions(rule)
		require.Equal(t, []int{test.has, test.rest}, []int{has, rest}, name)
	}
}

// needsEvents skips a test on a machine without an iptables whose changes are events.
func needsEvents(t *testing.T) {
	t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		version, err := exec.CommandContext(t.Context(), program, "--version").Output()
		if err != nil || !strings.Contains(string(version), "nf_tables") {
			t.Skip("needs iptables with nf_tables, whose changes are events")
		}
	}
}

func sh(t *testing.T, line string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, output)
	return string(output)
}

// TestRulesThatMayDropAreFound has the forms that iptables lists. What may not is left behind the rule that is to be last.
func TestRulesThatMayDropAreFound(t *testing.T) {
	for name, test := range map[string]struct {
		listed string
		want   bool
	}{
		"nothing":                    {"", false},
		"a rule that counts":         {"-A FORWARD -s 10.0.0.0/8 -m comment --comment \"of -j DROP\"", false},
		"some dropped":               {"-A FORWARD -s 10.0.0.0/8 -j DROP", true},
		"behind a comment":           {"-A FORWARD -m comment --comment \"of -j ACCEPT\" -j REJECT --reject-with icmp-port-unreachable", true},
		"accepted":                   {"-A FORWARD -s 10.0.0.0/8 -j ACCEPT", false},
		"logged":                     {"-A FORWARD -j LOG --log-prefix \"-j DROP\"", false},
		"queued":                     {"-A FORWARD -j NFQUEUE --queue-num 1", true},
		"the chain of a cluster":     {"-A FORWARD -j berth-1\n-A berth-1 -i berth-1 -j ACCEPT\n-A berth-1 -o berth-1 -j ACCEPT", false},
		"a chain that drops":         {"-A FORWARD -j user\n-A user -p tcp -j ACCEPT\n-A user -o pods -j DROP", true},
		"a chain of such chains":     {"-A FORWARD -g user\n-A user -j one\n-A one -p tcp -j DROP", true},
		"a chain that is empty yet":  {"-N user\n-A FORWARD -j user", true},
		"a chain that is not listed": {"-A FORWARD -j user", true},
	} {
		rules := parseChains(test.listed)
		require.Equal(t, test.want, rules.mayDrop(rules["FORWARD"]...), name)
	}
}

// TestARuleIsKeptBeforeWhatDropsTheRest has the real iptables, whose rules other programs change.
func TestARuleIsKeptBeforeWhatDropsTheRest(t *testing.T) {
	needsEvents(t)
	if testnet.RunInNew(t) {
		return
	}
	forward := Rule{Chain{"filter", "FORWARD"}, BeforeRest, []string{"-j", "OURS"}}
	rules := Rules{Chains: []Chain{{"filter", "OURS"}}, Rules: []Rule{forward}}
	sh(t, "iptables -P FORWARD DROP && iptables -A FORWARD -i a -j DROP && ip6tables -A FORWARD -i a -j DROP && ip6tables -A FORWARD -j REJECT")
	start(t, Deps{Clock: testclock.NewFakeClock(time.Now())}, Config{IPv4: rules, IPv6: rules})
	holds := func(when string, lists ...string) {
		require.EventuallyWithT(t, func(now *assert.CollectT) {
			require.Equal(now, strings.Join(lists, "\n")+"\n", sh(t, "iptables -S FORWARD; ip6tables -S FORWARD"), when)
		}, time.Minute, 10*time.Millisecond)
	}
	const user, ours, reject, reject6 = "-A FORWARD -i a -j DROP", "-A FORWARD -j OURS", "-A FORWARD -j REJECT --reject-with icmp-port-unreachable", "-A FORWARD -j REJECT --reject-with icmp6-port-unreachable"
	holds("at the start", "-P FORWARD DROP", user, ours, "-P FORWARD ACCEPT", user, ours, reject6)
	sh(t, "iptables -F FORWARD; iptables -P FORWARD ACCEPT")
	holds("after a flush", "-P FORWARD ACCEPT", ours, "-P FORWARD ACCEPT", user, ours, reject6)
	// Another program writes its rules anew, and ours behind them.
	sh(t, "printf '*filter\\n-F FORWARD\\n-A FORWARD -i a -j DROP\\n-A FORWARD -j REJECT\\n-A FORWARD -j OURS\\nCOMMIT\\n' | iptables-restore --noflush")
	holds("behind the rest", "-P FORWARD ACCEPT", user, ours, reject, "-P FORWARD ACCEPT", user, ours, reject6)
	// ufw rejects in a chain of its own. Another chain has what only nft can list, which does not concern the rule.
	sh(t, "printf '*filter\\n:ufw-reject-forward -\\n-A ufw-reject-forward -j REJECT\\n-F FORWARD\\n-A FORWARD -j ufw-reject-forward\\n-A FORWARD -j OURS\\nCOMMIT\\n' | iptables-restore --noflush")
	holds("behind a chain that rejects", "-P FORWARD ACCEPT", ours, "-A FORWARD -j ufw-reject-forward", "-P FORWARD ACCEPT", user, ours, reject6)
	sh(t, "nft add chain ip filter own && nft add rule ip filter own fib daddr type local drop")
	sh(t, "printf '*filter\\n-F FORWARD\\n-A FORWARD -i a -j DROP\\n-A FORWARD -j REJECT\\n-A FORWARD -j OURS\\nCOMMIT\\n' | iptables-restore --noflush")
	holds("with a chain of nft", "-P FORWARD ACCEPT", user, ours, reject, "-P FORWARD ACCEPT", user, ours, reject6)
}

// TestARuleIsMovedBehindThoseThatAreAddedLater has ufw's reload, which takes its jumps out of the chain and adds them again, and
// another Keeper whose rule is to be behind all others, too.
func TestARuleIsMovedBehindThoseThatAreAddedLater(t *testing.T) {
	needsEvents(t)
	if testnet.RunInNew(t) {
		return
	}
	inChain := func(name string) Rules {
		return Rules{Chains: []Chain{{"filter", name}}, Rules: []Rule{
			{Chain{"filter", name}, Last, []string{"-i", "pods", "-j", "ACCEPT"}},
			{Chain{"filter", "FORWARD"}, BeforeRest, []string{"-j", name}},
		}}
	}
	ours, others := inChain("OURS"), inChain("OTHERS")
	start(t, Deps{Clock: testclock.NewFakeClock(time.Now())}, Config{IPv4: ours})
	start(t, Deps{Clock: testclock.NewFakeClock(time.Now())}, Config{IPv4: others})
	hold := func(when string, want func(forward []string) bool) {
		require.EventuallyWithT(t, func(now *assert.CollectT) {
			rules := strings.Split(strings.TrimSpace(sh(t, "iptables -S FORWARD")), "\n")[1:]
			require.True(now, len(rules) >= 2 && want(rules), "%s: %q", when, rules)
		}, time.Minute, 10*time.Millisecond)
	}
	both := func(rules []string) bool {
		slices.Sort(rules)
		return slices.Equal(rules, []string{"-A FORWARD -j OTHERS", "-A FORWARD -j OURS"})
	}
	hold("at the start", both)
	sh(t, "iptables -N ufw-user && iptables -A FORWARD -j ufw-user && iptables -A ufw-user -o pods -j DROP")
	behind := func(rules []string) bool { return rules[0] == "-A FORWARD -j ufw-user" && both(rules[1:]) }
	hold("behind a chain", behind)
	sh(t, "iptables -A FORWARD -i a -j DROP")
	hold("behind a rule", func(rules []string) bool {
		return rules[0] == "-A FORWARD -j ufw-user" && rules[1] == "-A FORWARD -i a -j DROP" && both(rules[2:])
	})
	sh(t, "iptables -D FORWARD -i a -j DROP && iptables -A FORWARD -m comment --comment 'for -j DROP' -j LOG")
	hold("not behind what only logs", func(rules []string) bool {
		return len(rules) == 4 && rules[3] == "-A FORWARD -m comment --comment \"for -j DROP\" -j LOG"
	})
	sh(t, "nft add chain ip filter own && nft add rule ip filter own fib daddr type local drop")
	sh(t, "iptables -D FORWARD -m comment --comment 'for -j DROP' -j LOG && iptables -D FORWARD -j ufw-user && iptables -A FORWARD -j ufw-user")
	hold("with a chain of nft", behind)
}

// TestARuleOfAnotherProgramStaysWhenOursIsMoved has another program insert a rule after the chain was listed.
func TestARuleOfAnotherProgramStaysWhenOursIsMoved(t *testing.T) {
	chain := []string{"-A FORWARD -j REJECT", "-A FORWARD -j OURS"}
	k := New(Deps{Run: func(_ context.Context, _ string, args ...string) ([]byte, error) {
		rule := "-A FORWARD " + strings.Join(args[max(len(args)-2, 0):], " ")
		switch args[4] {
		case "-S":
			listed := strings.Join(chain, "\n")
			chain = slices.Insert(chain, 0, "-A FORWARD -i theirs -j DROP", "-A FORWARD -o theirs -j DROP")
			return []byte(listed), nil
		case "-I":
			at, err := strconv.Atoi(args[6])
			require.NoError(t, err)
			chain = slices.Insert(chain, at-1, rule)
		case "-D":
			at, err := strconv.Atoi(args[6])
			if err != nil {
				at = 1 + slices.Index(chain, rule)
			}
			chain = slices.Delete(chain, at-1, at)
		}
		return nil, nil
	}}, testConfig())
	require.NoError(t, k.placeBeforeRest(t.Context(), family{program: "iptables"}, Rule{Chain{"filter", "FORWARD"}, BeforeRest, []string{"-j", "OURS"}}))
	require.Equal(t, []string{"-A FORWARD -j OURS", "-A FORWARD -i theirs -j DROP", "-A FORWARD -o theirs -j DROP", "-A FORWARD -j REJECT"}, chain)
}

// noEvents is a kernel without nf_tables.
func noEvents(ctx context.Context, _ func(nftwatch.Change) bool, _, _ func()) error {
	<-ctx.Done()
	return nil
}

func TestDeletionsOfOthersDoNotConcernAKeeper(t *testing.T) {
	for deletion, want := range map[nftwatch.Change]bool{
		{Family: unix.NFPROTO_IPV4, Table: "mangle", Chain: "OURS"}:       true,
		{Family: unix.NFPROTO_IPV6, Table: "filter", Chain: "OURS"}:       true,
		{Family: unix.NFPROTO_IPV4, Table: "filter", Chain: "INPUT"}:      true, // which has a rule of ours
		{Family: unix.NFPROTO_IPV4, Table: "mangle"}:                      true,
		{Family: unix.NFPROTO_IPV6, Table: "filter", Chain: "INPUT"}:      false,
		{Family: unix.NFPROTO_IPV4, Table: "nat", Chain: "KUBE-SERVICES"}: false,
		{Family: unix.NFPROTO_IPV4, Table: "kube-proxy"}:                  false,
		{Family: unix.NFPROTO_BRIDGE, Table: "mangle"}:                    false,
	} {
		require.Equal(t, want, testConfig().concerns(deletion), "%v", deletion)
	}
}
