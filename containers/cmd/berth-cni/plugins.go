//go:build cni

package main // containers/cni.sh adds the sources of the root module's command berth-cni

import (
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/containers/cni/bridge"
	"github.com/berth-dev/berth/containers/cni/inprocess"
)

func init() {
	runBridge = func(command string, config []byte) ([]byte, error) {
		return inprocess.Run(bridge.Funcs(), version.All, command, config)
	}
}
