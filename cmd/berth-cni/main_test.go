package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up/addressfilter"
)

// network is the plugin's part of a network's configuration with the result of the plugin bridge.
func network(change func(config map[string]any)) []byte {
	config := map[string]any{
		"cniVersion": "1.0.0", "name": "berth0", "type": "berth", "bridge": "no-such-bridge",
		"prevResult": map[string]any{
			"cniVersion": "1.0.0",
			"interfaces": []map[string]any{
				{"name": "no-such-bridge", "mac": "02:00:00:00:00:01"}, {"name": "veth1", "mac": "02:00:00:00:00:02"},
				{"name": "eth0", "mac": "02:00:00:00:00:05", "sandbox": "/run/netns/x"},
			},
			"ips": []map[string]any{{"interface": 2, "address": "10.1.0.5/16", "gateway": "10.1.0.1"}},
		},
	}
	if change != nil {
		change(config)
	}
	data, _ := json.Marshal(config)
	return data
}

func TestThePodIsFoundInTheResultOfTheBridge(t *testing.T) {
	c, result, err := parse(network(nil))
	require.NoError(t, err)
	require.Empty(t, c.RuntimeConfig.PortMappings)
	port, err := addressfilter.PortOf(c.Bridge, result)
	require.NoError(t, err)
	require.Equal(t, "veth1", port.Name)
	require.Equal(t, "02:00:00:00:00:05", port.Card.String())
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.1.0.5")}, port.Addresses)
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	for want, config := range map[string][]byte{
		"parse the network's configuration":         []byte("{"),
		"field bridge is missing":                   network(func(c map[string]any) { delete(c, "bridge") }),
		"this plugin comes after the plugin bridge": network(func(c map[string]any) { delete(c, "prevResult") }),
		"built without the plugin bridge":           network(func(c map[string]any) { c["ipam"] = map[string]any{"type": "host-local"} }),
		"parse the result of the plugin before":     network(func(c map[string]any) { c["prevResult"] = map[string]any{"cniVersion": "9"} }),
	} {
		t.Run(want, func(t *testing.T) {
			require.ErrorContains(t, add(&skel.CmdArgs{StdinData: config}), want)
		})
	}
}

// TestAPodIsNotStartedUnrestricted has no table of the bridge.
func TestAPodIsNotStartedUnrestricted(t *testing.T) {
	err := add(&skel.CmdArgs{StdinData: network(nil)})
	require.ErrorContains(t, err, "keep the Pod at port veth1 to its own addresses")
}

func TestTheEndOfAPodNeedsNothing(t *testing.T) {
	require.NoError(t, del(&skel.CmdArgs{StdinData: network(func(c map[string]any) { delete(c, "prevResult") })}), "an ADD that failed has no result")
	if os.Geteuid() == 0 {
		require.NoError(t, del(&skel.CmdArgs{StdinData: network(nil)}), "the table is gone")
	}
}

// TestHostPortsArePassedOn runs a program in the place of the plugin portmap.
func TestHostPortsArePassedOn(t *testing.T) {
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	script := "#!/bin/sh\necho $CNI_COMMAND >> " + seen + "\ncat >> " + seen + "\necho '{\"cniVersion\": \"1.0.0\", \"code\": 100, \"msg\": \"planned\"}'\nexit 1\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "portmap"), []byte(script), 0o755))
	for name, value := range map[string]string{"CNI_PATH": dir, "CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/x"} {
		t.Setenv(name, value)
	}
	config := network(func(c map[string]any) {
		delete(c, "prevResult")
		c["runtimeConfig"] = map[string]any{"portMappings": []map[string]any{{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}}}
	})
	require.ErrorContains(t, del(&skel.CmdArgs{StdinData: config}), "planned")
	data, err := os.ReadFile(seen)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(data), "DEL\n"), "%s", data)
	require.Contains(t, string(data), `"hostPort":80`)
}

// TestHostPortsEndAfterTheInterface has package hostports in mind, which makes rules for Pods that have a network interface.
func TestHostPortsEndAfterTheInterface(t *testing.T) {
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "portmap"), []byte("#!/bin/sh\necho portmap $CNI_COMMAND >> "+seen+"\n"), 0o755))
	for name, value := range map[string]string{"CNI_PATH": dir, "CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/x"} {
		t.Setenv(name, value)
	}
	defer func(original func(string, []byte) ([]byte, error)) { runBridge = original }(runBridge)
	runBridge = func(command string, _ []byte) ([]byte, error) {
		return nil, os.WriteFile(seen, []byte("bridge "+command+"\n"), 0o600)
	}
	require.NoError(t, del(&skel.CmdArgs{StdinData: network(func(c map[string]any) {
		delete(c, "prevResult")
		c["ipam"] = map[string]any{"type": "host-local"}
		c["runtimeConfig"] = map[string]any{"portMappings": []map[string]any{{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}}}
	})}))
	data, err := os.ReadFile(seen)
	require.NoError(t, err)
	require.Equal(t, "bridge DEL\nportmap DEL\n", string(data))
}
