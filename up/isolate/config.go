package isolate

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Program is the name of the program that runs Launch and Init.
const Program = "berth-isolate"

// Config is the command line of berth-isolate. It has many fields because they are all that a process in other namespaces knows.
type Config struct {
	// Link is the name of the cluster's network interface in the machine's network namespace.
	Link string
	// IPv6 says that the cluster has IPv6, too.
	IPv6 bool
	// Avoid are networks that the link's addresses must not be in.
	Avoid []netip.Prefix
	// Resolvers are the machine's name servers on loopback, which are relayed.
	Resolvers []netip.Addr
	// DataDir, RunDir and Cgroup are those of the cluster. Loop devices of files in DataDir, mounts and files in RunDir, and
	// the cgroup are removed when the cluster has ended.
	DataDir, RunDir, Cgroup string
	// NewDataDir says that the caller created DataDir: it is removed again if no cluster was initialized in it.
	NewDataDir bool
	// Lock is the descriptor of DataDir's lock, Listener that of the API server's listening socket in the machine's network
	// namespace. Both are inherited by the cluster's process.
	Lock, Listener int
	// Page is the descriptor of the page's listening socket there; 0 if there is none. It is inherited, too.
	Page int
	// WithoutFirewall says that the machine's firewall gets no rules for the link's packets.
	WithoutFirewall bool
	// UserNamespace says that the caller is not root: the cluster has a user namespace, too, in which it is, and no link to the machine.
	UserNamespace bool
	// StartedAt is when the start began, in nanoseconds since 1970.
	StartedAt int64
	// Init says that this process is the first one of the namespaces. Control is then the descriptor of the socket on which
	// it reports that it receives signals, receives the link's addresses, and whose end says that the outer process has ended.
	Init    bool
	Control int
	// Network is, with Init, the descriptor of the machine's network namespace; 0 if the cluster has no link there.
	Network int
	// Argv is the cluster's program with its arguments.
	Argv []string
}

// Args returns the arguments from which Parse reads c.
func (c Config) Args() []string {
	args := []string{
		"--link", c.Link, "--data-dir", c.DataDir, "--run-dir", c.RunDir, "--cgroup", c.Cgroup,
		"--lock-fd", strconv.Itoa(c.Lock), "--listener-fd", strconv.Itoa(c.Listener),
		"--started-at", strconv.FormatInt(c.StartedAt, 10),
	}
	for _, prefix := range c.Avoid {
		args = append(args, "--avoid", prefix.String())
	}
	for _, resolver := range c.Resolvers {
		args = append(args, "--resolver", resolver.String())
	}
	if c.Page != 0 {
		args = append(args, "--page-fd", strconv.Itoa(c.Page))
	}
	if c.NewDataDir {
		args = append(args, "--new-data-dir")
	}
	if c.IPv6 {
		args = append(args, "--ipv6")
	}
	if c.WithoutFirewall {
		args = append(args, "--without-firewall")
	}
	if c.UserNamespace {
		args = append(args, "--user-namespace")
	}
	if c.Init {
		args = append(args, "--init", "--control-fd", strconv.Itoa(c.Control), "--network-fd", strconv.Itoa(c.Network))
	}
	return append(append(args, "--"), c.Argv...)
}

// Parse parses the arguments of berth-isolate.
func Parse(args []string) (Config, error) {
	var c Config
	var avoid, resolvers []string
	flags := pflag.NewFlagSet(Program, pflag.ContinueOnError)
	flags.SetInterspersed(false)
	flags.StringVar(&c.Link, "link", "", "name of the network interface in the machine's network namespace")
	flags.BoolVar(&c.IPv6, "ipv6", false, "the cluster has IPv6, too")
	flags.StringArrayVar(&avoid, "avoid", nil, "network that the link's addresses must not be in")
	flags.StringArrayVar(&resolvers, "resolver", nil, "name server on loopback to relay to")
	flags.StringVar(&c.DataDir, "data-dir", "", "the cluster's data directory")
	flags.StringVar(&c.RunDir, "run-dir", "", "the cluster's run directory")
	flags.StringVar(&c.Cgroup, "cgroup", "", "the cluster's cgroup")
	flags.BoolVar(&c.NewDataDir, "new-data-dir", false, "remove --data-dir if no cluster was initialized in it")
	flags.IntVar(&c.Lock, "lock-fd", -1, "descriptor of the data directory's lock")
	flags.IntVar(&c.Listener, "listener-fd", -1, "descriptor of the API server's listening socket")
	flags.IntVar(&c.Page, "page-fd", 0, "descriptor of the page's listening socket")
	flags.BoolVar(&c.WithoutFirewall, "without-firewall", false, "have no rules for the link in the machine's firewall")
	flags.BoolVar(&c.UserNamespace, "user-namespace", false, "give the cluster a user namespace, and no link to the machine")
	flags.Int64Var(&c.StartedAt, "started-at", 0, "when the start began, in nanoseconds since 1970")
	flags.BoolVar(&c.Init, "init", false, "this is the first process of the namespaces")
	flags.IntVar(&c.Control, "control-fd", -1, "descriptor of the outer process' pipe, with --init")
	flags.IntVar(&c.Network, "network-fd", 0, "descriptor of the machine's network namespace, with --init")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	for _, text := range avoid {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return c, fmt.Errorf("--avoid: %w", err)
		}
		c.Avoid = append(c.Avoid, prefix)
	}
	for _, text := range resolvers {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return c, fmt.Errorf("--resolver: %w", err)
		}
		c.Resolvers = append(c.Resolvers, addr)
	}
	c.Argv = flags.Args()
	return c, c.validate()
}

func (c Config) validate() error {
	var missing []string
	for _, flag := range []struct {
		name  string
		given bool
	}{
		{"--link", c.Link != ""}, {"--data-dir", c.DataDir != ""}, {"--run-dir", c.RunDir != ""}, {"--cgroup", c.Cgroup != ""},
		{"--lock-fd", c.Lock > 2}, {"--listener-fd", c.Listener > 2}, {"--page-fd", c.Page == 0 || c.Page > 2}, {"--control-fd", !c.Init || c.Control > 2},
		{"--network-fd", c.Network == 0 || c.Network > 2},
		{"the program to run", len(c.Argv) > 0},
	} {
		if !flag.given {
			missing = append(missing, flag.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s: `berth up --isolated` runs this program", strings.Join(missing, ", "))
	}
	return nil
}

// log prints what the user must know; the cluster's process has its own log.
func log(format string, args ...any) { fmt.Fprintf(os.Stderr, "berth: "+format+"\n", args...) }
