// Package runcinit makes a program that imports it the init process of its containers: runc's library runs the program's own file
// for each process of a container, with the argument init, and such a process never reaches main.
//
// Go initializes packages in the order of their import paths as far as dependencies allow, so this package imports nothing but
// runc's library: a container's init then skips the initialization of most of the program.
package runcinit

import (
	"os"

	_ "github.com/opencontainers/cgroups/devices" // lets the library set up device cgroups
	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // enters namespaces before Go starts

	_ "github.com/berth-dev/berth/containers/shim/seccompcache" // before that, reads the compiled seccomp profile
)

// Argument is the first argument of a container's init process.
const Argument = "init"

func init() {
	if len(os.Args) > 1 && os.Args[1] == Argument {
		restoreSlack()
		libcontainer.Init() // does not return
	}
	// runc's library passes this variable on to the init processes, which use one processor. They would start with as many as containerd
	// allows a shim, make threads for them, and give them up.
	_ = os.Setenv("GOMAXPROCS", "1") // never fails for this name and value
}
