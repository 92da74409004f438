package addressfilter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// PortOf finds the port of the bridge, and the Pod's addresses, in the result of the CNI plugin bridge.
func PortOf(bridge string, result *types100.Result) (Port, error) {
	var port Port
	for _, link := range result.Interfaces {
		switch {
		case link.Sandbox != "":
			card, err := net.ParseMAC(link.Mac)
			if err != nil {
				return port, fmt.Errorf("interface %s: %w", link.Name, err)
			}
			port.Card = card
		case link.Name != bridge:
			port.Name = link.Name
		}
	}
	for _, ip := range result.IPs {
		if address, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			port.Addresses = append(port.Addresses, address.Unmap())
		}
	}
	return port, nil
}

// RestrictAll restricts the ports of the Pods whose results the container runtime has in the files of its cache. What is wrong with
// one file does not concern the others.
func (t Table) RestrictAll(files []string) error {
	var errs []error
	for _, file := range files {
		port, err := t.readPort(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the Pod has ended meanwhile
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read the addresses of a Pod from %s: %w", file, err))
			continue
		}
		if _, err := net.InterfaceByName(port.Name); err != nil {
			continue // of a Pod that has ended
		}
		errs = append(errs, t.Restrict(port))
	}
	return errors.Join(errs...)
}

// readPort reads the port from a file of the runtime's cache, which has the result of the last plugin.
func (t Table) readPort(file string) (Port, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Port{}, err
	}
	var cached struct{ Result json.RawMessage }
	if err := json.Unmarshal(data, &cached); err != nil {
		return Port{}, err
	}
	if err := checkEntries(cached.Result); err != nil {
		return Port{}, err
	}
	created, err := create.CreateFromBytes(cached.Result)
	if err != nil {
		return Port{}, err
	}
	result, err := types100.NewResultFromResult(created)
	if err != nil {
		return Port{}, err
	}
	return PortOf(t.Bridge, result)
}

// checkEntries refuses a result with entries that have no content, on which the conversion between versions panics.
func checkEntries(result []byte) error {
	var lists struct{ Interfaces, IPs []*struct{} }
	if err := json.Unmarshal(result, &lists); err != nil {
		return err
	}
	if slices.Contains(lists.Interfaces, nil) || slices.Contains(lists.IPs, nil) {
		return errors.New("an interface or address of the result has no content")
	}
	return nil
}
