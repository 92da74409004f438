//go:build cni

// Package ipam replaces the package of the same name in the sources of the plugin bridge: it runs the plugin host-local in its own
// process, and other plugins of addresses as programs.
package ipam

import (
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ipam"

	"github.com/berth-dev/berth/containers/cni/hostlocal"
	"github.com/berth-dev/berth/containers/cni/inprocess"
)

const hostLocal = "host-local"

// ConfigureIface is the original's.
func ConfigureIface(name string, result *current.Result) error {
	return ipam.ConfigureIface(name, result)
}

func run(command string, config []byte) ([]byte, error) {
	return inprocess.Run(hostlocal.Funcs(), version.All, command, config)
}

// ExecAdd gets addresses.
func ExecAdd(plugin string, config []byte) (types.Result, error) {
	if plugin != hostLocal {
		return ipam.ExecAdd(plugin, config)
	}
	output, err := run("ADD", config)
	if err != nil {
		return nil, err
	}
	return create.CreateFromBytes(output)
}

// ExecDel gives addresses back.
func ExecDel(plugin string, config []byte) error {
	if plugin != hostLocal {
		return ipam.ExecDel(plugin, config)
	}
	_, err := run("DEL", config)
	return err
}

// ExecCheck checks that the addresses are still the container's.
func ExecCheck(plugin string, config []byte) error {
	if plugin != hostLocal {
		return ipam.ExecCheck(plugin, config)
	}
	_, err := run("CHECK", config)
	return err
}

// ExecStatus reports whether there can be addresses.
func ExecStatus(plugin string, config []byte) error {
	if plugin != hostLocal {
		return ipam.ExecStatus(plugin, config)
	}
	_, err := run("STATUS", config)
	return err
}
