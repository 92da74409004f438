package main

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/daemon"
	"github.com/berth-dev/berth/kubelet/memory"
	"github.com/berth-dev/berth/kubelet/options"
	"github.com/berth-dev/berth/kubelet/settings"
	"github.com/berth-dev/berth/version"
)

// kubeletName is the name of a link to berth that behaves as `berth kubelet`.
const kubeletName = "kubelet"

// helpWidth is the width of the help of the kubelet's flags.
const helpWidth = 132

// newKubelet returns the command that takes the place of Kubernetes' kubelet. Its flags are parsed by package options: they come
// before the files that they name.
func newKubelet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "kubelet [flags]", Short: "Run the kubelet with the flags and files of Kubernetes' own", DisableFlagParsing: true,
		Long: "Runs the kubelet of this machine in place of Kubernetes' own: with the same flags, the same configuration file\n" +
			"(--config) and drop-in files (--config-dir). A link named kubelet to berth does the same. docs/kubelet.md lists all\n" +
			"fields and flags, and which values are refused. `berth node` has fewer flags and defaults that fit more machines.",
		Example: "  berth kubelet --config /var/lib/kubelet/config.yaml --kubeconfig /etc/kubernetes/kubelet.conf\n" +
			"  ln -s /usr/local/bin/berth /usr/bin/kubelet",
		RunE: func(cmd *cobra.Command, args []string) error { return oneLine(runKubelet(cmd, args)) },
	}
	cmd.Flags().AddFlagSet(options.FlagSet()) // for the completion of shells
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n\nUsage:\n  %s\n\nExamples:\n%s\n\nFlags:\n%s", cmd.Long, cmd.UseLine(), cmd.Example, options.FlagSet().FlagUsagesWrapped(helpWidth))
	})
	return cmd
}

func runKubelet(cmd *cobra.Command, args []string) error {
	o, err := options.Parse(args, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	switch {
	case o.Flags.Help:
		return cmd.Help()
	case o.Flags.Version == options.VersionPlain:
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "Kubernetes "+version.Kubernetes)
		return err
	case o.Flags.Version == options.VersionRaw:
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "Kubernetes %s (Berth %s %s)\n", version.Kubernetes, version.Berth, version.Commit)
		return err
	}
	chosen, err := settings.ConvertComplete(o.Configuration)
	if err != nil {
		return err
	}
	config, err := daemonConfig(&o.Flags, chosen)
	if err != nil {
		return err
	}
	memory.TuneGC(chosen.Agent.Server.Profiling)
	logger, err := daemon.NewLogger(os.Stderr, &chosen.Logging)
	if err != nil {
		return err
	}
	for _, warning := range append(o.Warnings, chosen.Warnings...) {
		logger.Warn("configuration without effect", "setting", warning)
	}
	group, ctx := errgroup.WithContext(cmd.Context())
	records, err := newTimelineServer(ctx, "")
	if err != nil {
		return err
	}
	group.Go(contain.Func("berth.runKubelet", "", func() error { return records.run(ctx) }))
	group.Go(contain.Func("berth.runKubelet", "", func() error {
		return daemon.Run(ctx, daemon.Deps{
			Timeline: records.recorder, Collectors: []prometheus.Collector{records.stages}, Flags: o.Values, OnIdle: memory.Release, Logger: logger,
			TracerProvider: records.tracerProvider(),
		}, config)
	}))
	return group.Wait()
}

// daemonConfig returns what the flags say besides the configuration.
func daemonConfig(flags *options.Flags, chosen *settings.Settings) (daemon.Config, error) {
	ips, err := parseNodeIPs(flags.NodeIP)
	if err != nil {
		return daemon.Config{}, err
	}
	return daemon.Config{
		Settings: chosen, Kubeconfig: flags.Kubeconfig, BootstrapKubeconfig: flags.BootstrapKubeconfig, CertDir: flags.CertDir,
		RootDir: flags.RootDir, NodeName: flags.HostnameOverride, Addresses: daemon.AddressRule{IPs: ips}, Labels: flags.NodeLabels,
		ExternalCloud: flags.CloudProvider == options.CloudExternal, LockFile: flags.LockFile,
		ExitOnLockContention: flags.ExitOnLockContention, RuntimeCgroups: flags.RuntimeCgroups,
		CredentialProviders: flags.CredentialProviders, CredentialProvidersDir: flags.CredentialProvidersDir, RequireRuntime: true,
	}, nil
}

// parseNodeIPs parses --node-ip: an address, or two of different families.
func parseNodeIPs(value string) ([]net.IP, error) {
	if value == "" {
		return nil, nil
	}
	var ips []net.IP
	for text := range strings.SplitSeq(value, ",") {
		ip := net.ParseIP(strings.TrimSpace(text))
		if ip == nil {
			return nil, fmt.Errorf("--node-ip %q: %q is not an IP address", value, text)
		}
		ips = append(ips, ip)
	}
	switch {
	case len(ips) == 1:
	case len(ips) > 2 || (ips[0].To4() == nil) == (ips[1].To4() == nil):
		return nil, fmt.Errorf("--node-ip %q: want one address, or two of different families", value)
	case ips[0].IsUnspecified() || ips[1].IsUnspecified():
		return nil, fmt.Errorf("--node-ip %q: of two addresses none may be 0.0.0.0 or ::", value)
	}
	return ips, nil
}

// oneLine returns an error whose message is one line: what supervisors show of a program that has ended is often the last.
func oneLine(err error) error {
	if err == nil {
		return nil
	}
	return lineError{err}
}

type lineError struct{ error }

// Error implements error.
func (e lineError) Error() string {
	return strings.ReplaceAll(strings.TrimSpace(e.error.Error()), "\n", "; ")
}

// Unwrap returns the error of more lines.
func (e lineError) Unwrap() error { return e.error }
