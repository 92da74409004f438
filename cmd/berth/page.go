package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/page"
	"github.com/berth-dev/berth/timeline/remote"
)

// pageFlags are the flags of `berth page`.
type pageFlags struct {
	explainFlags
	listen string
}

func newPage() *cobra.Command {
	var flags pageFlags
	cmd := &cobra.Command{
		Use: "page", Args: noArgs,
		Short: "Show in the browser what is not running and why, and where the time goes",
		Long: "Serves a page on loopback until Ctrl-C and prints a link to it. The link works once, in one browser, within 15 minutes.\n\n" +
			"The page only reads, with the rights of the kubeconfig's user, and loads nothing from elsewhere. It shows changes as they\n" +
			"happen; while no page is open, nothing is read. What the user may not read is named.\n\n" +
			"Exit codes: 0 stopped by a signal, 1 not possible (no cluster, address in use), 2 wrong usage.",
		Example: "  berth page\n  berth page --kubeconfig ~/.kube/config\n  berth page --listen 127.0.0.1:8099   # and ssh -L 8099:127.0.0.1:8099 from afar",
		RunE:    func(cmd *cobra.Command, _ []string) error { return flags.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&flags.kubeconfig, "kubeconfig", "", "another cluster's kubeconfig; berth's own by default")
	f.StringVar(&flags.context, "context", "", "the kubeconfig's context to use")
	f.StringVar(&flags.socket, "socket", "", "`path` of the --socket of a 'berth node' or 'berth controllers' to read stages from (default: that of --data-dir)")
	f.StringVar(&flags.runtime, "runtime-endpoint", "", "`path` of the container runtime's socket, on a node of another cluster: to see sockets and names there")
	f.StringVarP(&flags.namespace, "namespace", "n", "", "show this namespace alone, for a user who may read no other (default: all)")
	f.StringVar(&flags.listen, "listen", "127.0.0.1:0", "loopback `address:port` of the page; port 0 chooses a free one")
	return cmd
}

// run serves the page until the command is stopped.
func (f *pageFlags) run(cmd *cobra.Command) error {
	address, err := netip.ParseAddrPort(f.listen)
	if err != nil || !address.Addr().IsLoopback() {
		return usageError{fmt.Errorf("--listen %q: name a loopback address and a port, as 127.0.0.1:0: other machines reach the page by `ssh -L`", f.listen)}
	}
	f.allNamespaces = f.namespace == ""
	config, src, err := f.connect(cmd)
	if err != nil {
		return err
	}
	client, err := page.NewClient(config)
	if err != nil {
		return err
	}
	if err := checkReachable(cmd.Context(), config.Host, client.Discovery()); err != nil {
		return err
	}
	var listening net.ListenConfig
	listener, err := listening.Listen(cmd.Context(), "tcp", address.String())
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer listener.Close()
	deps := page.Deps{
		Connect: func() (kubernetes.Interface, error) { return client, nil }, Network: src.Network, Logger: slog.Default(), Clock: clock.RealClock{},
	}
	if records, ok := src.Records.(*remote.Client); ok {
		deps.Records = records
	}
	server, err := page.New(deps, page.Config{Address: listener.Addr(), Command: f.forThisCluster, Cluster: config.Host, Namespace: f.namespace})
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s\n", server.URL())
	fmt.Fprintln(cmd.ErrOrStderr(), "The link works once, within 15 minutes. Ctrl-C ends the page.")
	return server.Serve(cmd.Context(), listener)
}
