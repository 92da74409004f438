package vm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOptionsThatCannotBe(t *testing.T) {
	network := &Network{}
	for want, options := range map[string]Options{
		"3 CPUs cannot be spread over 2 sockets":                 {CPUs: 3, Sockets: 2},
		"3 CPUs of a socket cannot be cores with 2 threads each": {CPUs: 6, Sockets: 2, Threads: 2},
		"4 CPUs and 6144 MiB cannot be spread over 3 NUMA nodes": {CPUs: 4, NUMANodes: 3},
		"100 MiB of memory are too few":                          {MemoryMiB: 100},
		"a machine in a network needs an address":                {Network: network},
		`address "10.0.0.2": want an IPv4 address`:               {Network: network, Address: "10.0.0.2"},
		`accelerator "xen": want kvm or tcg`:                     {Accelerator: "xen"},
		"a disk of 0 GiB":                                        {DisksGiB: []int{1, 0}},
		"a log of writes needs a disk":                           {WriteLog: "/m/log"},
	} {
		require.ErrorContains(t, options.withDefaults().validate(), want)
	}
	require.NoError(t, Options{}.withDefaults().validate())
}

func TestQemuArguments(t *testing.T) {
	options := Options{
		Name: "node1", CPUs: 8, Sockets: 2, Threads: 2, NUMANodes: 2, MemoryMiB: 4096, DisksGiB: []int{5},
		Shares: []Share{{Dir: "/programs", Path: "/opt"}}, KernelArgs: []string{"hugepages=4"},
		Network: &Network{}, Address: "10.1.2.3/20",
	}
	f := files{
		kernel: "/i/vmlinuz", initrd: "/i/initrd", root: "/m/root", disks: []string{"/m/disk1"}, shares: []string{"/m/share1"},
		console: "/m/console", ready: "/m/ready", qmp: "/m/qmp", networkSocket: "/m/net", networkMAC: "52:54:00:be:01:07",
	}
	args := strings.Join(qemuArgs(options, f, accelTCG, 2222, "0123", 2_594_000), " ")
	for _, want := range []string{
		"-smp 8,sockets=2,threads=2", "-accel tcg,thread=multi -cpu max,-avx,-avx2,vendor=GenuineIntel",
		"-numa node,nodeid=0,cpus=0-3,memdev=mem0", "-numa node,nodeid=1,cpus=4-7,memdev=mem1", "id=mem1,size=2048M",
		"systemd.hostname=node1 systemd.machine_id=0123 panic=-1 hugepages=4 no_timer_check", "no5lvl tsc_early_khz=2594000 ", "ifname=lan:52:54:00:be:01:07 ip=10.1.2.3:::255.255.240.0::lan:none",
		"restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:2222-:22", "file=/m/disk1,if=none,id=disk1,format=raw",
		"file=/m/share1,if=none,id=share1,format=raw,discard=unmap,readonly=on", "addr.path=/m/net", "mac=52:54:00:be:01:07",
	} {
		require.Contains(t, args, want)
	}
	kvm := strings.Join(qemuArgs(Options{}.withDefaults(), f, accelKVM, 1, "0", 2_594_000), " ")
	require.Contains(t, kvm, "-accel kvm -cpu host")
	require.NotContains(t, kvm, "tsc_early_khz")
	require.NotContains(t, strings.Join(qemuArgs(options, f, accelTCG, 1, "0", 0), " "), "tsc_early_khz")
	options.WriteLog = "/m/a,b"
	logged := strings.Join(qemuArgs(options, f, accelTCG, 1, "0", 0), " ")
	require.Contains(t, logged, "-blockdev driver=blklogwrites,node-name=disk1,discard=unmap,file.driver=file,file.filename=/m/disk1,")
	require.Contains(t, logged, "log.filename=/m/a,,b,")
	require.NotContains(t, logged, "file=/m/disk1,if=none")
	require.Equal(t, "/dev/disk/by-id/virtio-share1", shareDisk(0))
}
