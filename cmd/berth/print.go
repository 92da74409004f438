package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// printObject writes an API object as YAML.
func printObject(cmd *cobra.Command, object any) error {
	data, err := yaml.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode %T: %w", object, err)
	}
	_, err = cmd.OutOrStdout().Write(data)
	return err
}
