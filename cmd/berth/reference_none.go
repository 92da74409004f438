//go:build !reference

package main

import "github.com/spf13/cobra"

// addReference adds nothing: see reference.go.
func addReference(*cobra.Command) {}
