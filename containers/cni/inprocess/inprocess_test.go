package inprocess_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/containers/cni/inprocess"
)

const config = `{"cniVersion": "1.0.0", "name": "net", "type": "any"}`

func setArguments(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "pod", "CNI_IFNAME": "eth0", "CNI_NETNS": "/proc/1/ns/no-such", "CNI_PATH": "/", "CNI_NETNS_OVERRIDE": "1",
	} {
		t.Setenv(name, value)
	}
}

func TestPluginRunsAsItsProgramWould(t *testing.T) {
	setArguments(t)
	stdout := os.Stdout
	large := strings.Repeat("x", 1<<20) // more than a pipe holds
	output, err := inprocess.Run(skel.CNIFuncs{Del: func(args *skel.CmdArgs) error {
		_, err := fmt.Println(os.Getenv("CNI_COMMAND"), args.ContainerID, args.IfName, string(args.StdinData), large)
		return err
	}}, version.All, "DEL", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	if want := "DEL pod eth0 " + config + " " + large + "\n"; string(output) != want {
		t.Errorf("the plugin printed %d bytes, want %d", len(output), len(want))
	}
	if command := os.Getenv("CNI_COMMAND"); command != "ADD" || os.Stdout != stdout {
		t.Errorf("afterwards the command is %q and standard output is %v", command, os.Stdout)
	}
}

func TestErrorOfAPluginKeepsItsCode(t *testing.T) {
	setArguments(t)
	_, err := inprocess.Run(skel.CNIFuncs{Add: func(*skel.CmdArgs) error {
		return types.NewError(types.ErrTryAgainLater, "planned", "")
	}}, version.All, "ADD", []byte(config))
	var is *types.Error
	if !errors.As(err, &is) || is.Code != types.ErrTryAgainLater {
		t.Errorf("the error is %v", err)
	}
}
