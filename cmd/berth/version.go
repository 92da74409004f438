package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/programs"
	"github.com/berth-dev/berth/internal/sbom"
	"github.com/berth-dev/berth/version"
)

func newVersion() *cobra.Command {
	var output string
	var materials bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the versions of Berth and of the Kubernetes it runs", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if materials {
				return printMaterials(cmd, output)
			}
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
	cmd.Flags().BoolVar(&materials, "sbom", false, "print what berth and the programs beside it are made of: a software bill of materials (SPDX 2.3, JSON)")
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return cmd
}

// printMaterials prints the software bill of materials of this program and those in its directory.
func printMaterials(cmd *cobra.Command, output string) error {
	if output != "" && output != "json" {
		return usageError{fmt.Errorf("--sbom and --output %s: it is written in JSON", output)}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	dir, err := programs.Dir()
	if err != nil {
		return err
	}
	parts, err := sbom.ReadPrograms(dir)
	if err != nil {
		return err
	}
	if dir != filepath.Dir(self) {
		program, err := sbom.ReadProgram(self)
		if err != nil {
			return err
		}
		parts = append([]sbom.Program{program}, parts...)
	}
	encoder := json.NewEncoder(cmd.OutOrStdout())
	encoder.SetIndent("", "  ")
	return encoder.Encode(sbom.New(parts, sbom.Options{Name: "berth", Version: version.Berth, Created: time.Now()}))
}
