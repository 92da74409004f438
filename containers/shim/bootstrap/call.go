package bootstrap

import (
	"errors"
	"flag"
	"fmt"
	"io"
)

// Call is one call of the program by containerd.
type Call struct {
	Namespace string
	// ID is that of the container. For a start it is the first container of its Pod.
	ID string
	// Address is containerd's own socket.
	Address string
	// Bundle is the container's bundle, which is also the working directory; only of a removal.
	Bundle string
	Debug  bool
	// Info and Version ask for a description; they have no action.
	Info, Version bool
	// Action is "start" or "delete".
	Action string
}

// Parse reads the command line without the program's name.
func Parse(args []string) (Call, error) {
	var call Call
	flags := flag.NewFlagSet("containerd-shim-berth-v1", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&call.Namespace, "namespace", "", "containerd `namespace` of the container")
	flags.StringVar(&call.ID, "id", "", "`ID` of the container")
	flags.StringVar(&call.Address, "address", "", "`socket` of containerd")
	flags.StringVar(&call.Bundle, "bundle", "", "`directory` of the container's bundle, to delete")
	flags.String("publish-binary", "", "`program` of containerd; events go over its socket")
	flags.BoolVar(&call.Debug, "debug", false, "log more")
	flags.BoolVar(&call.Info, "info", false, "read runtime options from the standard input and write what this runtime supports")
	flags.BoolVar(&call.Version, "version", false, "write the version")
	flags.BoolVar(&call.Version, "v", false, "write the version")
	if err := flags.Parse(args); err != nil {
		return Call{}, fmt.Errorf("read the command line: %w: this program is called by containerd", err)
	}
	if call.Info || call.Version {
		return call, nil
	}
	call.Action = flags.Arg(0)
	switch {
	case flags.NArg() != 1 || call.Action != "start" && call.Action != "delete":
		return Call{}, fmt.Errorf("read the command line: want the action start or delete, got %q: this program is called by containerd", flags.Args())
	case call.Namespace == "" || call.ID == "":
		return Call{}, errors.New("read the command line: -namespace and -id are required")
	}
	return call, nil
}
