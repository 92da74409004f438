package up

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/routes"
)

func TestNetworksThatOverlapTheMachines(t *testing.T) {
	l := layoutFor(t, Config{DataDir: "/data", NodeName: "n", PodCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16"})
	route := func(network, link string) routes.Route {
		return routes.Route{Network: netip.MustParsePrefix(network), Interface: link}
	}
	found, err := l.networkConflicts([]routes.Route{route("10.1.0.0/24", l.Bridge()), route("10.3.0.0/16", "eth0")}, nil)
	require.NoError(t, err)
	require.Empty(t, found, "its own bridge is no conflict")

	found, err = l.networkConflicts([]routes.Route{route("10.0.0.0/8", "tun0")}, nil)
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, "--pod-cidr", found[0].flag)
	require.Equal(t, "--service-cidr", found[1].flag)
	require.Equal(t, "tun0", found[1].link)

	found, err = l.networkConflicts(nil, []state{{PodCIDR: "10.4.0.0/16", ServiceCIDR: "10.1.128.0/24", dataDir: "/other"}})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "/other", found[0].cluster)
	require.Equal(t, "10.1.128.0/24", found[0].theirs.String())
}

// TestClustersInOtherNetworkNamespacesAreNoConflict locks a data directory by a process in a network namespace of its own.
func TestClustersInOtherNetworkNamespacesAreNoConflict(t *testing.T) {
	path := filepath.Join(t.TempDir(), lockName)
	_, locked := lockHolder(path)
	require.False(t, locked, "no file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, locked = lockHolder(path)
	require.False(t, locked)
	own, err := filelock.Acquire(path)
	require.NoError(t, err)
	pid, locked := lockHolder(path)
	require.True(t, locked)
	require.Equal(t, os.Getpid(), pid)
	require.NoError(t, own.Close())
	require.False(t, isInOtherNetwork(os.Getpid()))
	require.False(t, isInOtherNetwork(0), "an unknown process may be in this one")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	process := exec.Command("/bin/sleep", "1000")
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	require.NoError(t, process.Start())
	require.True(t, isInOtherNetwork(process.Process.Pid))
	require.NoError(t, process.Process.Kill())
	require.Error(t, process.Wait())
}

func TestPortsAreCheckedBeforeTheBridgeExists(t *testing.T) {
	everywhere, err := net.ListenPacket("udp4", "0.0.0.0:0")
	require.NoError(t, err)
	defer everywhere.Close()
	used := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), netip.MustParseAddrPort(everywhere.LocalAddr().String()).Port())
	err = port{"udp", used, dnsName}.check(t.Context())
	require.ErrorContains(t, err, "dns: udp "+used.String()+" is in use by ")
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))
	require.ErrorContains(t, err, "--isolated")
	require.NoError(t, port{"tcp", used, dnsName}.check(t.Context()), "no such address, and no conflict")
}

// TestTheForeignProxyIsNamed shows a machine with a kubelet and a kube-proxy, and kube-proxies of other network namespaces.
func TestTheForeignProxyIsNamed(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, namespace, command string) {
		require.NoError(t, os.MkdirAll(filepath.Join(proc, pid, "ns"), 0o755))
		require.NoError(t, os.Symlink(namespace, filepath.Join(proc, pid, "ns/net")))
		require.NoError(t, os.WriteFile(filepath.Join(proc, pid, "cmdline"), []byte(command), 0o600))
	}
	process("self", "net:[1]", "berth\x00up\x00")
	process("10", "net:[2]", "/usr/bin/kube-proxy\x00")
	process("11", "net:[1]", "/sbin/init\x00")
	require.Contains(t, foreignProxy(proc), "none of its processes is visible")
	process("12", "net:[1]", "/usr/bin/kubelet\x00--config\x00")
	require.Equal(t, "kubelet, process 12", foreignProxy(proc))
	process("13", "net:[1]", "/usr/lib/berth/berth-controlplane\x00kube-proxy\x00--config\x00")
	require.Equal(t, "kube-proxy, process 13", foreignProxy(proc))
}

func TestVersionsOfNFT(t *testing.T) {
	for text, want := range map[string]string{"1.0.6 (Lester Gooch #5)": "1.0.6", "6.1.0-18-amd64": "6.1", "5.4": "5.4"} {
		version, ok := parseVersion(text)
		require.True(t, ok, text)
		require.Equal(t, want, printVersion(version))
	}
	_, ok := parseVersion("unknown")
	require.False(t, ok)
	require.True(t, isOlder([3]int{1, 0, 0}, minNFT))
	require.False(t, isOlder(minNFT, minNFT))
	require.False(t, isOlder([3]int{1, 1, 0}, minNFT))
	require.True(t, isOlder([3]int{0, 9, 8}, minNFT))
}

// TestAnOldNFTIsRefused runs programs in the place of nft.
func TestAnOldNFTIsRefused(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	require.ErrorContains(t, CheckServices(t.Context()), "apt-get install nftables")
	nft := func(script string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	nft("echo 'nftables v0.9.8 (E.D.S.)'")
	require.ErrorContains(t, CheckServices(t.Context()), "has version 0.9.8, which is too old for Services, which need 1.0.1")
	nft("echo 'nftables v1.0.6 (Lester Gooch #5)'")
	require.NoError(t, CheckServices(t.Context()))
	nft("echo cannot load libnftables >&2; exit 127")
	require.ErrorContains(t, CheckServices(t.Context()), "cannot load libnftables")
}

// TestAForeignTableIsRefused runs programs in the place of nft.
func TestAForeignTableIsRefused(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	nft := func(script string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	nft("echo 'table inet filter'")
	require.NoError(t, foreignProxyTable(t.Context(), "advice"))
	nft("echo 'table inet filter'; echo 'table ip kube-proxy'")
	require.ErrorContains(t, foreignProxyTable(t.Context(), "advice"), "a kube-proxy of another cluster runs on this machine")
	nft("echo 'netlink: Error: cache initialization failed: Protocol not supported' >&2; exit 1")
	err := foreignProxyTable(t.Context(), "advice")
	require.ErrorContains(t, err, "the kernel has no nftables")
	require.ErrorContains(t, err, "Protocol not supported")
}
