package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// typeMeta is the kind and version of an output for scripts, as Kubernetes objects have it. Every output has all fields
// of its version, and an empty list is [].
type typeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// listOutput is the output of a command that lists: an object, as kubectl's, because a bare array cannot be extended by
// a field.
type listOutput[T any] struct {
	typeMeta
	Items []T `json:"items"`
	// Unseen names what could not be read and may be missing from Items.
	Unseen []string `json:"unseen,omitempty"`
}

// newList returns the list of objects of a kind.
func newList[T any](apiVersion, kind string, items []T) listOutput[T] {
	return listOutput[T]{typeMeta: typeMeta{apiVersion, kind + "List"}, Items: append([]T{}, items...)}
}

// checkOutput rejects unknown formats of --output; empty is the format for people.
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
