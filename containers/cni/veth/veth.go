// Package veth connects a Pod's network namespace with the machine by a pair of interfaces.
package veth

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attempts is how many random names of the machine's interface are tried.
const attempts = 10

// Setup creates the pair: one interface in the network namespace of the calling thread, the other in the machine's. It replaces the
// function SetupVeth of the plugins' package ip, and differs from that in that both interfaces have IPv6 disabled.
//
// The machine's interface is a port of a bridge, and no end of IPv6: the bridge is. The Pod's has no address yet, and the plugin enables IPv6
// when it adds one of that family. Without that the kernel gives both a link-local address, joins groups, and sends for each some
// packets, which the bridge sends to all Pods: for many Pods that start at once that is work for each pair of them.
func Setup(name string, mtu int, mac string, machine ns.NetNS) (onMachine, inPod net.Interface, err error) {
	peer, err := create(name, mtu, mac, machine)
	if err != nil {
		return net.Interface{}, net.Interface{}, err
	}
	if inPod, err = prepare(name); err != nil {
		return net.Interface{}, net.Interface{}, err
	}
	err = machine.Do(func(ns.NetNS) error {
		if onMachine, err = prepare(peer); err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Index = onMachine.Index
		if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("bring up interface %s: %w", peer, err)
		}
		return nil
	})
	return onMachine, inPod, err
}

// create creates the pair and returns the name of the machine's interface.
func create(name string, mtu int, mac string, machine ns.NetNS) (peer string, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	if mac != "" {
		if attrs.HardwareAddr, err = net.ParseMAC(mac); err != nil {
			return "", fmt.Errorf("create interface %s: %w", name, err)
		}
	}
	for range attempts {
		if peer, err = ip.RandomVethName(); err != nil {
			return "", err
		}
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(int(machine.Fd()))})
		if !errors.Is(err, unix.EEXIST) {
			break
		}
		if _, missing := net.InterfaceByName(name); missing == nil {
			break // it is the Pod's that exists
		}
	}
	if err != nil {
		return "", fmt.Errorf("create interface %s with its peer %s on the machine: %w", name, peer, err)
	}
	return peer, nil
}

// prepare disables IPv6 on an interface of the calling thread's namespace, and describes it.
func prepare(name string) (net.Interface, error) {
	setting := filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6")
	if err := os.WriteFile(setting, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) { // it does not exist without IPv6
		return net.Interface{}, fmt.Errorf("disable IPv6 on interface %s: %w", name, err)
	}
	link, err := netlinksafe.LinkByName(name)
	if err != nil {
		return net.Interface{}, fmt.Errorf("look up interface %s: %w", name, err)
	}
	a := link.Attrs()
	return net.Interface{Index: a.Index, MTU: a.MTU, Name: a.Name, HardwareAddr: a.HardwareAddr, Flags: a.Flags}, nil
}
