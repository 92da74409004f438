package addressfilter

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/testnet"
)

const podCard = "02:00:00:00:00:05"

// machine is a network namespace with a bridge br0, at which port0 leads to a Pod with the address 10.1.0.5.
type machine struct {
	t   *testing.T
	pod int // a process in the Pod's network namespace
}

// onMachine runs a test in a network namespace of its own.
func onMachine(t *testing.T, do func(*machine)) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft: ", err)
	}
	testnet.InNew(t, func() {
		m := &machine{t: t}
		defer m.startPod()()
		do(m)
	})
}

// run runs a command of the machine; it reports whether it succeeds.
func (m *machine) run(command string) error {
	fields := strings.Fields(command)
	out, err := exec.Command(fields[0], fields[1:]...).CombinedOutput()
	if err != nil {
		m.t.Logf("%s: %v: %s", command, err, out)
	}
	return err
}

// inPod runs a command in the Pod's network.
func (m *machine) inPod(command string) error {
	return m.run("nsenter --net=/proc/" + strconv.Itoa(m.pod) + "/ns/net " + command)
}

// startPod creates the network. The result ends it.
func (m *machine) startPod() (end func()) {
	process := exec.Command("/bin/sleep", "1000")
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := process.Start(); err != nil {
		m.t.Error(err)
		return func() {}
	}
	m.pod = process.Process.Pid
	for _, command := range []string{
		"ip link set lo up", "ip link add br0 type bridge", "ip address add 10.1.0.1/16 dev br0", "ip address add fd00::1/64 dev br0 nodad", "ip link set br0 up",
		"ip link add port0 master br0 type veth peer name eth0 address " + podCard + " netns " + strconv.Itoa(m.pod),
		"ip link set port0 up",
	} {
		if m.run(command) != nil {
			m.t.Error(command)
		}
	}
	for _, command := range []string{"ip address add fd00::5/64 dev eth0 nodad", "ip address add fd00::6/64 dev eth0 nodad", "ip address add 10.1.0.5/16 dev eth0", "ip address add 10.1.0.6/16 dev eth0", "ip link set eth0 up"} {
		if m.inPod(command) != nil {
			m.t.Error(command)
		}
	}
	return func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
}

// reaches reports whether the Pod reaches the bridge with one of its addresses as the source.
func (m *machine) reaches(source string) bool {
	_ = m.run("ip neigh flush dev br0")
	return m.inPod("busybox ping -c 1 -W 1 -I "+source+" 10.1.0.1") == nil
}

// reaches6 is reaches for IPv6. The machine learns the Pod's hardware address from neighbour advertisements.
func (m *machine) reaches6(source string) bool {
	_ = m.run("ip -6 neigh flush dev br0")
	return m.inPod("busybox ping6 -c 1 -W 1 -I "+source+" fd00::1") == nil
}

// claims6 reports whether the machine finds the Pod at the address.
func (m *machine) claims6(address string) bool {
	_ = m.run("ip -6 neigh flush dev br0")
	return m.run("busybox ping6 -c 1 -W 1 "+address) == nil
}

func podPort() Port {
	card, _ := net.ParseMAC(podCard)
	return Port{Name: "port0", Card: card, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("fd00::5")}}
}

func TestPortsSendFromTheirOwnAddresses(t *testing.T) {
	onMachine(t, func(m *machine) {
		check := func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
		table := Table{Bridge: "br0", IPv6: true}
		check(table.Install(t.Context()))
		if !m.reaches("10.1.0.5") || !m.reaches("10.1.0.6") {
			t.Error("a port that is in no set is restricted")
		}
		check(table.Restrict(podPort()))
		check(table.Restrict(podPort()))
		check(table.Install(t.Context())) // a cluster that starts again
		if !m.reaches("10.1.0.5") {
			t.Error("a Pod does not reach anything with its own address")
		}
		if m.reaches("10.1.0.6") {
			t.Error("a Pod can send from another address")
		}
		if !m.reaches6("fd00::5") || !m.claims6("fd00::5") {
			t.Error("a Pod does not reach anything with its own IPv6 address")
		}
		if m.reaches6("fd00::6") || m.claims6("fd00::6") {
			t.Error("a Pod can have another IPv6 address")
		}
		if m.inPod("ip link set eth0 address 02:00:00:00:00:06") == nil && m.reaches("10.1.0.5") {
			t.Error("a Pod can send from another hardware address")
		}
		check(table.Release(podPort()))
		check(table.Release(podPort())) // it is unknown now
		if !m.reaches("10.1.0.6") {
			t.Error("a port that was released is restricted")
		}
		check(table.Remove(t.Context()))
		check(table.Remove(t.Context()))
		check(table.Release(podPort()))
		if table.Restrict(podPort()) == nil {
			t.Error("a Pod that cannot be restricted is started")
		}
	})
}

// TestRunningPodsAreRestrictedAgain has the files of the runtime's cache when another program has removed the table.
func TestRunningPodsAreRestrictedAgain(t *testing.T) {
	onMachine(t, func(m *machine) {
		dir := t.TempDir()
		write := func(name, content string) string {
			file := filepath.Join(dir, name)
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Error(err)
			}
			return file
		}
		result := func(port string) string {
			return `{"kind": "cniCacheV1", "containerId": "c", "ifName": "eth0", "networkName": "br0", "result": {"cniVersion": "1.0.0",
				"interfaces": [{"name": "br0", "mac": "02:00:00:00:00:01"}, {"name": "` + port + `", "mac": "02:00:00:00:00:02"},
					{"name": "eth0", "mac": "` + podCard + `", "sandbox": "/run/netns/c"}],
				"ips": [{"interface": 2, "address": "10.1.0.5/16", "gateway": "10.1.0.1"}, {"interface": 2, "address": "fd00::5/64"}]}}`
		}
		files := []string{
			write("damaged", `{"kind"`), write("of an ended Pod", result("port9")), filepath.Join(dir, "missing"), write("running", result("port0")),
		}
		table := Table{Bridge: "br0", IPv6: true}
		if err := table.Install(t.Context()); err != nil {
			t.Error(err)
		}
		if err := table.RestrictAll(files); err == nil || !strings.Contains(err.Error(), "damaged") || strings.Contains(err.Error(), "missing") {
			t.Error("it reports the damaged file alone: ", err)
		}
		if !m.reaches("10.1.0.5") || !m.reaches6("fd00::5") {
			t.Error("a Pod does not reach anything with its own address")
		}
		if m.reaches("10.1.0.6") || m.reaches6("fd00::6") {
			t.Error("a Pod can send from another address")
		}
	})
}

// TestLoopbackIsNotReachedFromOutside turns on the setting with which the kernel would accept such packets.
func TestLoopbackIsNotReachedFromOutside(t *testing.T) {
	onMachine(t, func(m *machine) {
		for _, command := range []string{"sysctl -qw net.ipv4.conf.all.route_localnet=1", "sysctl -qw net.ipv4.conf.all.rp_filter=0"} {
			_ = m.run(command)
			_ = m.inPod(command)
		}
		_ = m.inPod("ip route add 127.0.0.9/32 via 10.1.0.1 src 10.1.0.5")
		reaches := func() bool { return m.inPod("busybox ping -c 1 -W 1 127.0.0.9") == nil }
		if !reaches() {
			t.Skip("this kernel does not route it anyway")
		}
		if err := (Table{Bridge: "br0"}).Install(t.Context()); err != nil {
			t.Error(err)
		}
		if reaches() {
			t.Error("a Pod reaches the machine's loopback")
		}
	})
}

func TestPortsOfNoPodAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Port){
		"no name":            func(p *Port) { p.Name = "" },
		"too long a name":    func(p *Port) { p.Name = "0123456789abcdef" },
		"no hardware":        func(p *Port) { p.Card = nil },
		"no address":         func(p *Port) { p.Addresses = nil },
		"an unknown address": func(p *Port) { p.Addresses = []netip.Addr{{}} },
	} {
		t.Run(name, func(t *testing.T) {
			port := podPort()
			change(&port)
			require.Error(t, (Table{Bridge: "br0"}).Restrict(port))
			require.Error(t, (Table{Bridge: "br0"}).Release(port))
		})
	}
}
