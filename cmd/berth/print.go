package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// typeMeta is how each output for scripts begins, as an object of Kubernetes does: what it is, and of which version, so that a
// later one can be told from it. A field that the version has is there in every output, and a list that is empty is [].
type typeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// listOutput is the output of a command that lists: an object, as of kubectl, because a bare array could never be given a
// field.
type listOutput[T any] struct {
	typeMeta
	Items []T `json:"items"`
	// Unseen tells what could not be looked at, so that it may be missing above.
	Unseen []string `json:"unseen,omitempty"`
}

// newList makes the list of objects of a kind.
func newList[T any](apiVersion, kind string, items []T) listOutput[T] {
	return listOutput[T]{typeMeta: typeMeta{apiVersion, kind + "List"}, Items: append([]T{}, items...)}
}

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
