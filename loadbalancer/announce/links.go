package announce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/routes"
)

// machine has the interfaces of the network namespace of the calling thread.
type machine struct{}

// hostBits is the prefix length of our addresses.
const hostBits = 32

// list returns all IPv4 addresses of the machine.
func list() ([]netlink.Addr, error) {
	all, err := routes.RetryInterrupted(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list the machine's addresses: %w", err)
	}
	return all, nil
}

func addrOf(address netlink.Addr) (ip netip.Addr, ones int) {
	ip, _ = netip.AddrFromSlice(address.IP.To4())
	ones, _ = address.Mask.Size()
	return ip, ones
}

func (machine) addresses(within netip.Prefix) ([]netip.Addr, error) {
	all, err := list()
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, one := range all {
		if ip, ones := addrOf(one); ones == hostBits && within.Contains(ip) {
			found = append(found, ip)
		}
	}
	return found, nil
}

func (machine) add(address, node netip.Addr) error {
	all, err := list()
	if err != nil {
		return err
	}
	for _, one := range all {
		if ip, _ := addrOf(one); ip != node {
			continue
		}
		link, err := netlink.LinkByIndex(one.LinkIndex)
		if err != nil {
			return fmt.Errorf("announce %s: find the interface of the node's address %s: %w", address, node, err)
		}
		own := &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(hostBits, hostBits)}}
		if err := netlink.AddrReplace(link, own); err != nil {
			return fmt.Errorf("add address %s to %s: %w", address, link.Attrs().Name, err)
		}
		return gratuitousARP(link.Attrs(), address)
	}
	return fmt.Errorf("announce %s: no interface has the node's address %s", address, node)
}

func (machine) remove(address netip.Addr) error {
	all, err := list()
	if err != nil {
		return err
	}
	for _, one := range all {
		if ip, ones := addrOf(one); ip != address || ones != hostBits {
			continue
		}
		link, err := netlink.LinkByIndex(one.LinkIndex)
		if err != nil {
			return fmt.Errorf("remove address %s: %w", address, err)
		}
		if err := netlink.AddrDel(link, &one); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s from %s: %w", address, link.Attrs().Name, err)
		}
	}
	return nil
}

// gratuitousARP reports to the neighbours on the link that the interface has the address now (RFC 5227, an announcement), so
// that those which know it from another machine forget that at once. Interfaces without ARP need none.
func gratuitousARP(link *netlink.LinkAttrs, address netip.Addr) error {
	hardware := link.HardwareAddr
	if len(hardware) != 6 {
		return nil
	}
	var frame bytes.Buffer
	broadcast := bytes.Repeat([]byte{0xff}, 6)
	frame.Write(broadcast)
	frame.Write(hardware)
	for _, field := range []uint16{unix.ETH_P_ARP, 1 /* Ethernet */, unix.ETH_P_IP, 6<<8 | 4 /* lengths */, 1 /* request */} {
		_ = binary.Write(&frame, binary.BigEndian, field) // a buffer has no error
	}
	for _, field := range [][]byte{hardware, address.AsSlice(), make([]byte, 6), address.AsSlice()} {
		frame.Write(field)
	}
	const arp = unix.ETH_P_ARP<<8&0xff00 | unix.ETH_P_ARP>>8 // in network byte order
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("announce %s on %s: %w", address, link.Name, err)
	}
	defer unix.Close(socket)
	to := &unix.SockaddrLinklayer{Protocol: arp, Ifindex: link.Index, Halen: 6}
	copy(to.Addr[:], broadcast)
	if err := unix.Sendto(socket, frame.Bytes(), 0, to); err != nil {
		return fmt.Errorf("announce %s on %s: %w", address, link.Name, err)
	}
	return nil
}

// Remove removes the Services' addresses within the range from the machine, and leaves it that of the node.
func Remove(within netip.Prefix, node netip.Addr) error {
	addresses, err := machine{}.addresses(within)
	errs := []error{err}
	for _, address := range without(addresses, node) {
		errs = append(errs, machine{}.remove(address))
	}
	return errors.Join(errs...)
}
