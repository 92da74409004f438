//go:build cni

// Package bridge is the CNI plugin bridge as a package: containers/cni.sh adds the plugin's own sources to it.
package bridge

import "github.com/containernetworking/cni/pkg/skel"

// Funcs are what the plugin does.
func Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: cmdAdd, Del: cmdDel, Check: cmdCheck, Status: cmdStatus}
}
