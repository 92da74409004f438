package containerd

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/internal/atomicfile"
)

// networkFile is the name of a configuration of the pod network.
const networkFile = "10-berth.conflist"

// writeNetworks writes the configurations of the pod network.
func (c Config) writeNetworks() error {
	bridge := c.bridgePlugin()
	ports := object{"backend": c.Machine.Firewall, "capabilities": object{"portMappings": true}}
	own := maps.Clone(bridge)
	maps.Copy(own, ports)
	own["type"], own["addressFilter"] = "berth", c.AddressFilter
	err := c.writeNetwork(c.CNIConfDir, own)
	if !c.StandardPlugins {
		return err
	}
	if err := os.MkdirAll(c.standardNetworkDir(), 0o700); err != nil {
		return fmt.Errorf("write the pod network's configuration: %w", err)
	}
	bridge["type"], ports["type"] = "bridge", "portmap"
	return errors.Join(err, c.writeNetwork(c.standardNetworkDir(), bridge, ports))
}

// standardNetworkDir is the directory of the configuration for StandardPlugins.
func (c Config) standardNetworkDir() string { return filepath.Join(c.CNIConfDir, "standard") }

func (c Config) writeNetwork(dir string, plugins ...object) error {
	text, err := json.MarshalIndent(object{"cniVersion": "1.0.0", "name": c.Bridge, "plugins": plugins}, "", "  ")
	if err != nil {
		return fmt.Errorf("write the pod network's configuration: %w", err)
	}
	return atomicfile.WriteVolatile(filepath.Join(dir, networkFile), text, 0o600)
}

// object is a part of a JSON document.
type object = map[string]any

// addressRange is the part of host-local's configuration for one family.
func addressRange(pods netip.Prefix, gateway netip.Addr) object {
	return object{"subnet": pods.String(), "gateway": gateway.String(), "rangeStart": gateway.Next().String()}
}

// bridgePlugin is the configuration of the plugin bridge: Pods on the bridge, with addresses from PodCIDR.
func (c Config) bridgePlugin() object {
	routes := []object{{"dst": "0.0.0.0/0"}}
	ranges := [][]object{{addressRange(c.PodCIDR, c.Gateway)}}
	if c.PodCIDR6.IsValid() {
		routes = append(routes, object{"dst": "::/0"})
		ranges = append(ranges, []object{addressRange(c.PodCIDR6, c.Gateway6)})
	}
	return object{
		"bridge": c.Bridge, "isGateway": true, "hairpinMode": true,
		"ipMasq": !c.ClusterMasquerade, "ipMasqBackend": c.Machine.Firewall,
		"ipam": object{
			"type": "host-local", "dataDir": c.addressesDir(),
			"routes": routes, "ranges": ranges,
		},
	}
}
