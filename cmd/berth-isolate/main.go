// Command berth-isolate runs a cluster in namespaces of its own. `berth up --isolated` becomes this program, which starts
// `berth up` again in the namespaces.
//
// It is a program of its own because two of its processes run as long as the cluster does: they need a few MiB where two
// more processes of berth would need many.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/berth-dev/berth/up/isolate"
)

const exitUsage = 2

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	config, err := isolate.Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", isolate.Program, err)
		return exitUsage
	}
	do := config.Launch
	if config.Init {
		do = config.RunInit
	}
	code, err := do(context.Background())
	if err != nil {
		fmt.Fprintf(os.Stderr, "berth: isolate the cluster: %v\n", err)
		code = max(code, 1)
	}
	return code
}
