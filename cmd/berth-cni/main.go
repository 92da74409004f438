// Command berth-cni is a CNI plugin that connects a Pod to a bridge, as the plugin bridge does with addresses of the plugin host-local,
// which are both part of its program; it keeps the Pod to the addresses that it was given, and passes the Pod's host ports on to the
// plugin portmap, which runs only for Pods that have some.
//
// It is a program of its own, and a small one, because the container runtime starts it for each Pod. containers/cni.sh builds it; without
// that it has no plugins in it, and can only come after the plugin bridge: its configuration then has no part ipam.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/up/addressfilter"
)

// portmap is the plugin that forwards ports of the host to Pods.
const portmap = "portmap"

// runBridge calls the plugin bridge, which is in this program, with a command and a configuration; nil if it is not.
var runBridge func(command string, config []byte) ([]byte, error)

// config is the plugin's part of the network's configuration.
type config struct {
	types.PluginConf
	// Bridge is the bridge of the Pods.
	Bridge string `json:"bridge"`
	// AddressFilter says whether the bridge's table of package addressfilter exists. It always does after the plugin bridge.
	AddressFilter bool `json:"addressFilter"`
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
	if !c.connects() {
		c.AddressFilter = true
	} else if runBridge == nil {
		return nil, nil, errors.New("parse the network's configuration: this program was built without the plugin bridge: remove the part ipam")
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

// connects reports whether it is this plugin that connects the Pod to the bridge.
func (c *config) connects() bool { return c.IPAM.Type != "" }

// restrict keeps the Pod to the addresses that the plugin bridge gave it. To do that twice changes nothing.
func (c *config) restrict(result *types100.Result) error {
	if !c.AddressFilter {
		return nil
	}
	port, err := addressfilter.PortOf(c.Bridge, result)
	if err != nil {
		return err
	}
	return addressfilter.Table{Bridge: c.Bridge}.Restrict(port)
}

// release forgets what restrict has done.
func (c *config) release(result *types100.Result) error {
	if !c.AddressFilter || result == nil {
		return nil // what an ADD that failed has left goes with the table
	}
	port, err := addressfilter.PortOf(c.Bridge, result)
	if err != nil {
		return err
	}
	return addressfilter.Table{Bridge: c.Bridge}.Release(port)
}

// connect connects the Pod to the bridge. It returns the result, and the configuration of plugins after it.
func (c *config) connect(stdin []byte) (*types100.Result, []byte, error) {
	printed, err := runBridge("ADD", stdin)
	if err != nil {
		return nil, nil, err
	}
	created, err := create.CreateFromBytes(printed)
	if err != nil {
		return nil, nil, fmt.Errorf("parse the result of the plugin bridge: %w", err)
	}
	result, err := types100.NewResultFromResult(created)
	if err != nil {
		return nil, nil, fmt.Errorf("parse the result of the plugin bridge: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &fields); err != nil {
		return nil, nil, fmt.Errorf("parse the network's configuration: %w", err)
	}
	fields["prevResult"] = printed
	after, err := json.Marshal(fields)
	return result, after, err
}

// add connects the Pod. If it fails, the runtime calls del.
func add(args *skel.CmdArgs) error {
	c, result, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	after := args.StdinData
	if c.connects() {
		if result, after, err = c.connect(args.StdinData); err != nil {
			return err
		}
	} else if result == nil {
		return errMissingResult
	}
	if err := c.restrict(result); err != nil {
		return err
	}
	if len(c.RuntimeConfig.PortMappings) == 0 {
		return types.PrintResult(result, c.CNIVersion)
	}
	mapped, err := invoke.DelegateAdd(context.Background(), portmap, after, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("forward the Pod's host ports: %w", err), c.release(result))
	}
	return types.PrintResult(mapped, c.CNIVersion)
}

var errMissingResult = errors.New("no result of a plugin before: without a part ipam this plugin comes after the plugin bridge")

func del(args *skel.CmdArgs) error {
	c, result, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	errs := []error{c.release(result)}
	if c.connects() {
		_, err := runBridge("DEL", args.StdinData)
		errs = append(errs, err)
	}
	// Last: package hostports may make the rules again until the Pod's network interface is gone.
	if len(c.RuntimeConfig.PortMappings) > 0 {
		if err := invoke.DelegateDel(context.Background(), portmap, args.StdinData, nil); err != nil {
			errs = append(errs, fmt.Errorf("stop forwarding the Pod's host ports: %w", err))
		}
	}
	return errors.Join(errs...)
}

// check restricts the port again, which changes nothing if it is restricted.
func check(args *skel.CmdArgs) error {
	c, result, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if result == nil {
		return errMissingResult
	}
	if c.connects() {
		if _, err := runBridge("CHECK", args.StdinData); err != nil {
			return err
		}
	}
	if err := c.restrict(result); err != nil {
		return err
	}
	if len(c.RuntimeConfig.PortMappings) == 0 {
		return nil
	}
	return invoke.DelegateCheck(context.Background(), portmap, args.StdinData, nil)
}

func gc(*skel.CmdArgs) error { return nil }

func status(*skel.CmdArgs) error { return nil }
