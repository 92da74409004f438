package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// checkOutput refuses formats of --output that no command knows; empty is for people.
func checkOutput(format string) error {
	switch format {
	case "", "json", "yaml":
		return nil
	}
	return usageError{fmt.Errorf("--output %q: json and yaml are known", format)}
}

// printAs writes a value as JSON or YAML.
func printAs(cmd *cobra.Command, format string, value any) error {
	if format == "yaml" {
		return printObject(cmd, value)
	}
	encoder := json.NewEncoder(cmd.OutOrStdout())
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// printObject writes an API object as YAML.
func printObject(cmd *cobra.Command, object any) error {
	data, err := yaml.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode %T: %w", object, err)
	}
	_, err = cmd.OutOrStdout().Write(data)
	return err
}
