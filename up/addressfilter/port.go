package addressfilter

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Port is a port of the bridge, and the addresses of the Pod behind it.
type Port struct {
	// Name is that of the network interface on the bridge.
	Name string
	// Card is the hardware address of the Pod's interface.
	Card net.HardwareAddr
	// Addresses are the Pod's addresses.
	Addresses []netip.Addr
}

// element is a member of one of the sets.
type element struct {
	set string
	key []byte
}

// elements are the members of the sets for the port, the port itself last: it is restricted once its addresses are known.
func (p Port) elements() ([]element, error) {
	if len(p.Name) == 0 || len(p.Name) >= unix.IFNAMSIZ || len(p.Card) != 6 || len(p.Addresses) == 0 {
		return nil, fmt.Errorf("port %q with hardware address %q and addresses %v: not that of a Pod", p.Name, p.Card, p.Addresses)
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, p.Name)
	card := append(append([]byte{}, name...), append([]byte(p.Card), 0, 0)...) // each part fills words of 4 bytes
	list := []element{{setCards, card}}
	for _, address := range p.Addresses {
		key := append(append([]byte{}, card...), address.AsSlice()...)
		switch {
		case address.Is4():
			list = append(list, element{setAddresses, key})
		case address.Is6() && !address.Is4In6():
			list = append(list, element{setAddresses6, key}, element{setTargets6, key})
		default:
			return nil, fmt.Errorf("port %s: %q is no address", p.Name, address)
		}
	}
	return append(list, element{setPorts, name}), nil
}

// Restrict lets the port send from its own addresses only. Doing it again changes nothing.
func (t Table) Restrict(port Port) error {
	elements, err := port.elements()
	if err != nil {
		return fmt.Errorf("keep a Pod to its own addresses: %w", err)
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("keep the Pod at port %s to its own addresses: %w", port.Name, err)
	}
	for _, e := range elements {
		if err := conn.SetAddElements(t.set(e.set), []nftables.SetElement{{Key: e.key}}); err != nil {
			return fmt.Errorf("keep the Pod at port %s to its own addresses: %w", port.Name, err)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("keep the Pod at port %s to its own addresses: %w", port.Name, err)
	}
	return nil
}

// Release forgets the port. It does nothing if the port is unknown or the table does not exist.
func (t Table) Release(port Port) error {
	elements, err := port.elements()
	if err != nil {
		return fmt.Errorf("forget the addresses of a Pod: %w", err)
	}
	err = t.remove(elements...)
	if errors.Is(err, unix.ENOENT) { // one that is missing fails all
		err = nil
		for _, e := range elements {
			if oneErr := t.remove(e); !errors.Is(oneErr, unix.ENOENT) {
				err = errors.Join(err, oneErr)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("forget the addresses of the Pod at port %s: %w", port.Name, err)
	}
	return nil
}

// remove removes elements in one transaction: the kernel waits at the end of each until what it removed is no longer in use.
func (t Table) remove(elements ...element) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	for _, e := range elements {
		if err := conn.SetDeleteElements(t.set(e.set), []nftables.SetElement{{Key: e.key}}); err != nil {
			return err
		}
	}
	return conn.Flush()
}

func (t Table) set(name string) *nftables.Set {
	return &nftables.Set{Table: &nftables.Table{Family: nftables.TableFamilyBridge, Name: t.Bridge}, Name: name}
}
