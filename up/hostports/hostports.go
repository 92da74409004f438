package hostports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
)

// plugin is the name of the CNI plugin, and of its program.
const plugin = "portmap"

// Table is the name of the plugin's tables with nftables. With iptables it has its rules in the table nat.
const Table = "cni_hostport"

// attachment is what a file of the cache has of the Pod. Config is a network's configuration.
type attachment struct {
	ContainerID, IfName, NetNS, NetworkName string

	Config         []byte
	CapabilityArgs struct{ PortMappings []json.RawMessage }
	Result         json.RawMessage
	// port is the machine's network interface that leads to the Pod.
	port string
}

// Ensure makes the rules that are missing of the Pods that the files of the cache have. binDir is the directory of the CNI plugins. What is
// wrong with one Pod does not concern the others.
func Ensure(ctx context.Context, binDir string, files []string) error {
	var errs []error
	for _, file := range files {
		a, err := read(file)
		if err == nil && a != nil && ctx.Err() == nil {
			err = a.ensure(ctx, filepath.Join(binDir, plugin))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("forward the host ports of the Pod in %s: %w", file, err))
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// read returns nothing for a Pod that has no host ports, or has ended.
func read(file string) (*attachment, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // see above
	}
	if err != nil {
		return nil, err
	}
	a := &attachment{}
	var result struct {
		Interfaces []struct{ Name, Sandbox string }
	}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, err
	}
	if len(a.CapabilityArgs.PortMappings) == 0 {
		return nil, nil //nolint:nilnil // see above
	}
	if err := json.Unmarshal(a.Result, &result); err != nil {
		return nil, err
	}
	for _, link := range result.Interfaces {
		if link.Sandbox == "" && link.Name != a.NetworkName { // which is the bridge's
			a.port = link.Name
		}
	}
	if a.hasEnded() {
		return nil, nil //nolint:nilnil // see above
	}
	return a, nil
}

// hasEnded reports whether the runtime has removed the Pod's network, of which the rules for its host ports are the last part: then it does
// not remove again what is made now.
func (a *attachment) hasEnded() bool {
	_, err := net.InterfaceByName(a.port)
	return err != nil
}

func (a *attachment) ensure(ctx context.Context, program string) error {
	config, err := a.config()
	if err != nil {
		return err
	}
	call := func(command string) error {
		args := &invoke.Args{Command: command, ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Path: filepath.Dir(program)}
		if err := invoke.ExecPluginWithoutResult(ctx, program, config, args, nil); err != nil {
			return fmt.Errorf("%s %s: %w", plugin, command, err)
		}
		return nil
	}
	if call("CHECK") == nil {
		return nil
	}
	// Some rules may be left, and with nftables ADD would add these a second time.
	if err := errors.Join(call("DEL"), call("ADD")); err != nil {
		return err
	}
	if a.hasEnded() {
		return call("DEL")
	}
	return nil
}

// config is the plugin's configuration.
func (a *attachment) config() ([]byte, error) {
	var network struct {
		CNIVersion string
		Plugins    []struct {
			Backend      string
			Capabilities map[string]bool
		}
	}
	if err := json.Unmarshal(a.Config, &network); err != nil {
		return nil, fmt.Errorf("parse the network's configuration: %w", err)
	}
	for _, p := range network.Plugins {
		if p.Capabilities["portMappings"] {
			return json.Marshal(map[string]any{
				"cniVersion": network.CNIVersion, "name": a.NetworkName, "type": plugin, "backend": p.Backend,
				"capabilities":  p.Capabilities,
				"runtimeConfig": map[string]any{"portMappings": a.CapabilityArgs.PortMappings}, "prevResult": a.Result,
			})
		}
	}
	return nil, errors.New("the network's configuration has no plugin for host ports")
}
