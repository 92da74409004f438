package main

import (
	"encoding/json"
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
				Berth      string `json:"berth"`
				Commit     string `json:"commit,omitempty"`
				Kubernetes string `json:"kubernetes"`
				Kubelet    string `json:"kubelet"`
				Go         string `json:"go"`
				Platform   string `json:"platform"`
			}{version.Berth, version.Commit, version.Kubernetes, version.Kubelet(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			switch output {
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(versions)
			case "":
				fmt.Fprintf(cmd.OutOrStdout(), "berth       %s\nkubernetes  %s\nkubelet     %s\ngo          %s %s\n",
					versions.Berth, versions.Kubernetes, versions.Kubelet, versions.Go, versions.Platform)
				return nil
			default:
				return usageError{fmt.Errorf("--output %q: only json is known", output)}
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format: json")
	return cmd
}
