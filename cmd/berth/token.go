package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/join"
)

// defaultTokenTTL is how long a token is valid: a day, as those of kubeadm.
const defaultTokenTTL = 24 * time.Hour

// tokensVersion is the version of the tokens' output for scripts.
const tokensVersion = "tokens.berth.dev/v1alpha1"

func newToken() *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", Short: "Let other machines join the cluster", Args: requireSubcommand, RunE: showHelp,
		Long: "Creates, lists and deletes the bootstrap tokens with which other machines join a cluster of `berth up`. The cluster must listen on\n" +
			"an address that they reach: berth up --api-address ADDRESS.",
		Example: "  berth token create\n  berth token list\n  berth token delete abcdef",
	}
	cmd.AddCommand(newTokenCreate(), newTokenList(), newTokenDelete())
	return cmd
}

func newTokenCreate() *cobra.Command {
	ttl, description, whole := defaultTokenTTL, "", true
	cmd := &cobra.Command{
		Use: "create", Short: "Create a token, and print the command with which a machine joins", Args: noArgs,
		Example: "  berth token create\n  berth token create --ttl 1h --description rack-2",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl < 0 {
				return usageError{fmt.Errorf("--ttl %s: negative; 0 is for ever", ttl)}
			}
			layout, client, err := adminClient(cmd)
			if err != nil {
				return err
			}
			if whole && layout.APIAddress == "" {
				return errors.New("other machines do not reach this cluster: its API server listens on loopback and the pod bridge only; start it " +
					"with berth up --api-address ADDRESS, or print the token alone with --print-join-command=false")
			}
			token, err := join.CreateToken(cmd.Context(), client, time.Now(), ttl, description)
			if err != nil {
				return err
			}
			if !whole {
				fmt.Fprintln(cmd.OutOrStdout(), token)
				return nil
			}
			ca, err := os.ReadFile(layout.PKI("ca.crt"))
			if err != nil {
				return fmt.Errorf("read the cluster's CA: %w", err)
			}
			pin, err := join.PinOf(ca)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "berth node --join https://%s --token %s --ca-cert-hash %s\n",
				net.JoinHostPort(layout.NodeIP().String(), strconv.Itoa(layout.APIPort)), token, pin)
			return nil
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", ttl, "how long the token is valid; 0: for ever")
	cmd.Flags().StringVar(&description, "description", "", "what the token is for")
	cmd.Flags().BoolVar(&whole, "print-join-command", true, "print the whole command; false: the token alone")
	return cmd
}

func newTokenList() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Short: "List the tokens, without their secrets", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			_, client, err := adminClient(cmd)
			if err != nil {
				return err
			}
			tokens, err := join.ListTokens(cmd.Context(), client)
			if err != nil {
				return err
			}
			return printTokens(cmd, tokens, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return cmd
}

func printTokens(cmd *cobra.Command, tokens []join.Token, output string) error {
	if output != "" {
		return printAs(cmd, output, newList(tokensVersion, "Token", tokens))
	}
	if len(tokens) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "there are no tokens: berth token create")
		return nil
	}
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "ID\tVALID FOR\tCAN JOIN\tDESCRIPTION")
	for _, token := range tokens {
		left := "ever"
		if token.Expires != nil {
			left = "expired"
			if d := time.Until(token.Expires.Time); d > 0 {
				left = duration.HumanDuration(d)
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%t\t%s\n", token.ID, left, token.CanJoin, token.Description)
	}
	return table.Flush()
}

func newTokenDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete ID...", Short: "Delete tokens; machines that have joined are not affected",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("which token? `berth token list` lists them")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			_, client, err := adminClient(cmd)
			if err != nil {
				return err
			}
			var errs []error
			for _, token := range args {
				errs = append(errs, join.DeleteToken(cmd.Context(), client, token))
			}
			return errors.Join(errs...)
		},
	}
}

// adminClient returns the layout of the cluster and a client of its administrator.
func adminClient(cmd *cobra.Command) (up.Layout, kubernetes.Interface, error) {
	layout, err := layoutOf(cmd)
	if err != nil {
		return layout, nil, err
	}
	if layout.Server != "" {
		return layout, nil, fmt.Errorf("this machine is a node of the cluster at %s: use that cluster's first machine", layout.Server)
	}
	if _, err := os.Stat(layout.AdminKubeconfig()); err != nil {
		return layout, nil, noCluster(layout, err)
	}
	config, err := loadKubeconfig(layout.AdminKubeconfig())
	if err != nil {
		return layout, nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return layout, nil, fmt.Errorf("create an API client: %w", err)
	}
	return layout, client, checkReachable(cmd.Context(), config.Host, client.Discovery())
}
