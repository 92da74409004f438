// Command berth-cni is a CNI plugin that comes after the plugin bridge: it keeps the Pod to the addresses that it was given,
// and passes the Pod's host ports on to the plugin portmap, which runs only for Pods that have some.
//
// It is a program of its own, and a small one, because the container runtime starts it for each Pod.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/up/addressfilter"
)

// portmap is the plugin that forwards ports of the host to Pods.
const portmap = "portmap"

// config is the plugin's part of the network's configuration.
type config struct {
	types.PluginConf
	// Bridge is the bridge of the Pods, whose table of package addressfilter exists.
	Bridge        string `json:"bridge"`
	RuntimeConfig struct {
		PortMappings []json.RawMessage `json:"portMappings"`
	} `json:"runtimeConfig"`
}

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status},
		version.PluginSupports("0.4.0", "1.0.0", "1.1.0"), "berth keeps Pods to their own addresses")
}

// parse reads the configuration with the result of the plugins before this one, which is nil if there is none.
func parse(data []byte) (*config, *types100.Result, error) {
	var c config
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, nil, fmt.Errorf("parse the network's configuration: %w", err)
	}
	if c.Bridge == "" {
		return nil, nil, errors.New("parse the network's configuration: field bridge is missing")
	}
	if c.RawPrevResult == nil {
		return &c, nil, nil
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, nil, fmt.Errorf("parse the result of the plugin before: %w", err)
	}
	result, err := types100.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, nil, fmt.Errorf("parse the result of the plugin before: %w", err)
	}
	return &c, result, nil
}

// portOf finds the port of the bridge, and the Pod's addresses, in the result of the plugin bridge.
func portOf(bridge string, result *types100.Result) (addressfilter.Port, error) {
	var port addressfilter.Port
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

// restrict keeps the Pod to the addresses that the plugin bridge gave it. To do that twice changes nothing.
func restrict(stdin []byte) (*config, *types100.Result, addressfilter.Port, error) {
	c, result, err := parse(stdin)
	if err != nil {
		return nil, nil, addressfilter.Port{}, err
	}
	if result == nil {
		return nil, nil, addressfilter.Port{}, errors.New("no result of a plugin before: this plugin comes after the plugin bridge")
	}
	port, err := portOf(c.Bridge, result)
	if err != nil {
		return nil, nil, port, err
	}
	return c, result, port, addressfilter.Table{Bridge: c.Bridge}.Restrict(port)
}

func add(args *skel.CmdArgs) error {
	c, result, port, err := restrict(args.StdinData)
	if err != nil {
		return err
	}
	if len(c.RuntimeConfig.PortMappings) == 0 {
		return types.PrintResult(result, c.CNIVersion)
	}
	mapped, err := invoke.DelegateAdd(context.Background(), portmap, args.StdinData, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("forward the Pod's host ports: %w", err), addressfilter.Table{Bridge: c.Bridge}.Release(port))
	}
	return types.PrintResult(mapped, c.CNIVersion)
}

func del(args *skel.CmdArgs) error {
	c, result, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	var errs []error
	if len(c.RuntimeConfig.PortMappings) > 0 {
		if err := invoke.DelegateDel(context.Background(), portmap, args.StdinData, nil); err != nil {
			errs = append(errs, fmt.Errorf("stop forwarding the Pod's host ports: %w", err))
		}
	}
	if result == nil {
		return errors.Join(errs...) // what an ADD that failed has left goes with the table
	}
	port, err := portOf(c.Bridge, result)
	if err == nil {
		err = addressfilter.Table{Bridge: c.Bridge}.Release(port)
	}
	return errors.Join(append(errs, err)...)
}

// check restricts the port again, which changes nothing if it is restricted.
func check(args *skel.CmdArgs) error {
	c, _, _, err := restrict(args.StdinData)
	if err != nil {
		return err
	}
	if len(c.RuntimeConfig.PortMappings) == 0 {
		return nil
	}
	return invoke.DelegateCheck(context.Background(), portmap, args.StdinData, nil)
}

func gc(*skel.CmdArgs) error { return nil }

func status(*skel.CmdArgs) error { return nil }
