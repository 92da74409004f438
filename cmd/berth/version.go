package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/version"
)

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "version", Short: "Print the versions of Berth and of the Kubernetes it runs", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			versions := struct {
				typeMeta
				Berth      string `json:"berth"`
				Commit     string `json:"commit,omitempty"`
				Kubernetes string `json:"kubernetes"`
				Kubelet    string `json:"kubelet"`
				Go         string `json:"go"`
				Platform   string `json:"platform"`
			}{typeMeta{"version.berth.dev/v1alpha1", "Version"}, version.Berth, version.Commit, version.Kubernetes, version.Kubelet(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if err := checkOutput(output); err != nil {
				return err
			}
			if output != "" {
				return printAs(cmd, output, versions)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "berth       %s\nkubernetes  %s\nkubelet     %s\ngo          %s %s\n",
				versions.Berth, versions.Kubernetes, versions.Kubelet, versions.Go, versions.Platform)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return cmd
}
