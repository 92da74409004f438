package veth_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/containers/cni/veth"
)

// namespaces makes two network namespaces, for the machine and for a Pod.
func namespaces(t *testing.T) (machine, pod ns.NetNS) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	var both [2]ns.NetNS
	for i := range both {
		made, err := ns.TempNetNS()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = made.Close() })
		both[i] = made
	}
	return both[0], both[1]
}

// in calls do in a network namespace.
func in(t *testing.T, where ns.NetNS, do func() error) {
	t.Helper()
	if err := where.Do(func(ns.NetNS) error { return do() }); err != nil {
		t.Fatal(err)
	}
}

func addresses6(t *testing.T, name string) []netlink.Addr {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	all, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestInterfacesHaveNoIPv6UntilItIsEnabled(t *testing.T) {
	machine, pod := namespaces(t)
	var port string
	in(t, pod, func() error {
		onMachine, inPod, err := veth.Setup("eth0", 1400, "02:00:00:00:00:07", machine)
		port = onMachine.Name
		if err == nil && (inPod.Name != "eth0" || inPod.MTU != 1400 || inPod.HardwareAddr.String() != "02:00:00:00:00:07") {
			t.Errorf("the Pod's interface is %+v", inPod)
		}
		return err
	})
	up := func(name string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}
	in(t, pod, func() error { return up("eth0") })
	in(t, machine, func() error {
		link, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		if link.Attrs().MTU != 1400 || link.Attrs().OperState != netlink.OperUp {
			t.Errorf("the machine's interface is %+v", link.Attrs())
		}
		if got := addresses6(t, port); len(got) > 0 {
			t.Errorf("the machine's interface has %v", got)
		}
		return nil
	})
	in(t, pod, func() error {
		if got := addresses6(t, "eth0"); len(got) > 0 {
			t.Errorf("the Pod's interface has %v", got)
		}
		if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", "eth0", "disable_ipv6"), []byte("0"), 0); err != nil {
			return err
		}
		if got := addresses6(t, "eth0"); len(got) != 1 || !got[0].IP.IsLinkLocalUnicast() {
			t.Errorf("with IPv6 enabled the Pod's interface has %v", got)
		}
		return nil
	})
}

func TestInterfaceThatExistsIsAnError(t *testing.T) {
	machine, pod := namespaces(t)
	in(t, pod, func() error {
		if _, _, err := veth.Setup("eth0", 0, "", machine); err != nil {
			return err
		}
		if _, _, err := veth.Setup("eth0", 0, "", machine); err == nil {
			t.Error("there are two interfaces eth0")
		}
		return nil
	})
	in(t, machine, func() error {
		links, err := netlink.LinkList()
		if err == nil && len(links) != 2 { // with lo
			t.Errorf("the machine has %d interfaces", len(links))
		}
		return err
	})
}
