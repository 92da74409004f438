//go:build cni

// Package bridge is the CNI plugin bridge as a package: containers/cni.sh adds the plugin's own sources to it.
package bridge

import (
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/berth-dev/berth/containers/cni/veth"
)

// Funcs are what the plugin does.
func Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: cmdAdd, Del: cmdDel, Check: cmdCheck, Status: cmdStatus}
}

// connectPod is called where the plugin's sources call SetupVeth of the plugins' package ip.
func connectPod(name string, mtu int, mac string, machine ns.NetNS) (onMachine, inPod net.Interface, err error) {
	return veth.Setup(name, mtu, mac, machine)
}
