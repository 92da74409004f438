//go:build cni

// Package hostlocal is the CNI plugin host-local as a package: containers/cni.sh adds the plugin's own sources to it.
package hostlocal

import "github.com/containernetworking/cni/pkg/skel"

// Funcs are what the plugin does.
func Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: cmdAdd, Del: cmdDel, Check: cmdCheck}
}
