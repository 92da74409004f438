package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/usercert"
)

const (
	// defaultUserTTL is how long a user's certificate is valid: nothing revokes it.
	defaultUserTTL = 24 * time.Hour
	// issueTimeout is how long the control plane may take to sign a certificate.
	issueTimeout = 30 * time.Second
)

// kubeconfigFlags are the flags of `berth kubeconfig`.
type kubeconfigFlags struct {
	identity                  usercert.Identity
	namespace, server, output string
	ttl                       time.Duration
}

func newKubeconfig() *cobra.Command {
	f := kubeconfigFlags{}
	cmd := &cobra.Command{
		Use: "kubeconfig --user NAME", Short: "Make a kubeconfig for a person, with a certificate of its own", Args: noArgs,
		Long: "Makes a kubeconfig with a client certificate for a user, which the cluster signs and its audit log records, and prints it.\n" +
			"The user may do what roles that are bound to the name or to a group allow; nothing else. Nothing revokes the certificate\n" +
			"before it expires: choose a short --ttl, and unbind the roles. The cluster must run.",
		Example: "  berth kubeconfig --user anna --group developers -o anna.kubeconfig\n" +
			"  berth kubectl create rolebinding developers --clusterrole edit --group developers -n default",
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.identity.User, "user", "", "the user's name, to which roles are bound")
	flags.StringArrayVar(&f.identity.Groups, "group", nil, "a group of the user, to which roles are bound; repeatable")
	flags.DurationVar(&f.ttl, "ttl", defaultUserTTL, "how long the certificate is valid: 10m to 8760h")
	flags.StringVar(&f.namespace, "namespace", "", "the namespace of commands that name none (default: default)")
	flags.StringVar(&f.server, "server", "", "the API server's URL in the kubeconfig (default: at --api-address of berth up, or else at 127.0.0.1)")
	flags.StringVarP(&f.output, "output", "o", "", "write the kubeconfig to this `file`, readable by its owner only; -: standard output, as without this flag")
	return cmd
}

func (f *kubeconfigFlags) run(cmd *cobra.Command) error {
	if err := f.identity.Validate(); err != nil {
		return usageError{err}
	}
	if f.ttl < usercert.MinLife || f.ttl > usercert.MaxLife {
		return usageError{fmt.Errorf("--ttl %s: want between %s and %s", f.ttl, usercert.MinLife, usercert.MaxLife)}
	}
	layout, client, err := adminClient(cmd)
	if err != nil {
		return err
	}
	admin, err := clientcmd.LoadFromFile(layout.AdminKubeconfig())
	if err != nil {
		return fmt.Errorf("read kubeconfig %q: %w", layout.AdminKubeconfig(), err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), issueTimeout)
	defer cancel()
	issued, err := usercert.Issue(ctx, client, f.identity, f.ttl)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the control plane did not sign the certificate within %s (is the cluster running? berth doctor): %w", issueTimeout, err)
	}
	if err != nil {
		return err
	}
	data, err := f.encode(layout, admin, issued)
	if err != nil {
		return err
	}
	if err := f.write(cmd.OutOrStdout(), data); err != nil {
		return err
	}
	if has, err := usercert.HasRights(ctx, client, f.identity); err == nil && !has {
		fmt.Fprintf(cmd.ErrOrStderr(), "No role is bound to %s yet: berth kubectl create clusterrolebinding %s-view --clusterrole view --user %s\n",
			f.identity.User, f.identity.User, f.identity.User)
	}
	return nil
}

// write writes the kubeconfig to --output, or to out.
func (f *kubeconfigFlags) write(out io.Writer, data []byte) error {
	write := func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
	if f.output == "" || f.output == "-" {
		return write(out)
	}
	return replaceFile(f.output, write)
}

// encode returns the kubeconfig.
func (f *kubeconfigFlags) encode(layout up.Layout, admin *clientcmdapi.Config, issued usercert.Certificate) ([]byte, error) {
	const name = "berth"
	current, found := admin.Contexts[admin.CurrentContext]
	if !found || admin.Clusters[current.Cluster] == nil {
		return nil, fmt.Errorf("kubeconfig %q names no cluster: the next start of the cluster repairs it", layout.AdminKubeconfig())
	}
	cluster := admin.Clusters[current.Cluster].DeepCopy()
	switch {
	case f.server != "":
		cluster.Server = f.server
	case layout.APIAddress != "":
		cluster.Server = "https://" + net.JoinHostPort(layout.NodeIP().String(), strconv.Itoa(layout.APIPort))
	}
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{f.identity.User: {ClientCertificateData: issued.Cert, ClientKeyData: issued.Key}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: f.identity.User, Namespace: f.namespace}},
		CurrentContext: name,
	}
	data, err := clientcmd.Write(config)
	if err != nil {
		return nil, fmt.Errorf("encode the kubeconfig: %w", err)
	}
	return data, nil
}
