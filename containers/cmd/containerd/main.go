// Command containerd is containerd of the pinned version, all of it, the plugin of package idlememory, and the command of package
// databasecheck.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/cmd/containerd/command"

	"github.com/berth-dev/berth/containers/databasecheck"
	_ "github.com/berth-dev/berth/containers/idlememory"
	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
)

func main() {
	app := command.App()
	app.Commands = append(app.Commands, databasecheck.Command())
	if err := app.Run(context.Background(), os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "containerd:", err)
		os.Exit(1)
	}
}
