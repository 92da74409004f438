package vm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// Options describe a machine. The zero value is one with two CPUs and 6 GiB of memory.
type Options struct {
	// Name is the host name; "vm" if empty.
	Name string
	// CPUs is the number of processors; 2 if 0.
	CPUs int
	// Sockets is the number of processor packages that the CPUs are spread over; 1 if 0.
	Sockets int
	// Threads is the number of threads, which are processors, of each core; 1 if 0.
	Threads int
	// NUMANodes is the number of memory nodes that CPUs and memory are spread over; no NUMA topology if 0.
	NUMANodes int
	// MemoryMiB is the size of the memory; 6144 if 0.
	MemoryMiB int
	// DisksGiB are the sizes of further, empty disks: /dev/disk/by-id/virtio-disk1 and so on. They are sparse.
	DisksGiB []int
	// WriteLog is a file that gets, for package writelog, what the machine writes to the first of these disks; none if empty. It lasts from
	// one Boot to the next.
	WriteLog string
	// Root is a disk that an earlier machine of the same image had, which is copied; one like the image if empty.
	Root string
	// Shares are directories of the host that the machine has a read-only copy of.
	Shares []Share
	// KernelArgs are added to the kernel's command line.
	KernelArgs []string
	// Network is the network that the machine is in, at Address (CIDR notation, 10.0.0.2/24 for instance).
	Network *Network
	Address string
	// Accelerator is "kvm", "tcg", or empty for kvm where it works.
	Accelerator string
	// ConsoleLog is the file that gets what the machine writes to its console; a file in the machine's directory if empty.
	ConsoleLog string
}

// Share is a directory of the host, copied to a read-only disk when the machine starts and mounted at Path.
type Share struct {
	Dir, Path string
	// Disk is the disk of [Share.WithDisk], which takes the place of Dir.
	Disk string
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = "vm"
	}
	if o.CPUs == 0 {
		o.CPUs = 2
	}
	if o.Sockets == 0 {
		o.Sockets = 1
	}
	if o.Threads == 0 {
		o.Threads = 1
	}
	if o.MemoryMiB == 0 {
		o.MemoryMiB = 6144
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.CPUs < 1 || o.Sockets < 1 || o.CPUs%o.Sockets != 0:
		return fmt.Errorf("%d CPUs cannot be spread over %d sockets", o.CPUs, o.Sockets)
	case o.Threads < 1 || o.CPUs/o.Sockets%o.Threads != 0:
		return fmt.Errorf("%d CPUs of a socket cannot be cores with %d threads each", o.CPUs/o.Sockets, o.Threads)
	case o.NUMANodes < 0 || o.NUMANodes > 0 && (o.CPUs%o.NUMANodes != 0 || o.MemoryMiB%o.NUMANodes != 0):
		return fmt.Errorf("%d CPUs and %d MiB cannot be spread over %d NUMA nodes", o.CPUs, o.MemoryMiB, o.NUMANodes)
	case o.MemoryMiB < 256:
		return fmt.Errorf("%d MiB of memory are too few: Debian needs 256", o.MemoryMiB)
	case (o.Network == nil) != (o.Address == ""):
		return errors.New("a machine in a network needs an address, and one without a network has none")
	case o.Accelerator != "" && o.Accelerator != accelKVM && o.Accelerator != accelTCG:
		return fmt.Errorf("accelerator %q: want %s or %s", o.Accelerator, accelKVM, accelTCG)
	}
	if o.Address != "" {
		if prefix, err := netip.ParsePrefix(o.Address); err != nil || !prefix.Addr().Is4() {
			return fmt.Errorf("address %q: want an IPv4 address with a prefix length, as 10.0.0.2/24", o.Address)
		}
	}
	if o.WriteLog != "" && len(o.DisksGiB) == 0 {
		return errors.New("a log of writes needs a disk")
	}
	for _, size := range o.DisksGiB {
		if size < 1 {
			return fmt.Errorf("a disk of %d GiB", size)
		}
	}
	return nil
}

// files are the paths that qemu gets, all of one machine but kernel and initrd.
type files struct {
	kernel, initrd, root string
	disks, shares        []string
	console, ready, qmp  string
	networkSocket        string
	networkMAC           string
}

// qemuArgs are the arguments of qemu for the options, defaults filled in.
// tsc is the frequency of the time stamp counter in kHz, 0 if it is not known.
func qemuArgs(o Options, f files, accelerator string, sshPort int, machineID string, tsc uint64) []string {
	kernel := append([]string{
		"root=/dev/vda", "rw", "console=ttyS0", "quiet", "systemd.hostname=" + o.Name, "systemd.machine_id=" + machineID,
		"panic=-1", // with -no-reboot it ends qemu
	}, o.KernelArgs...)
	if accelerator != accelKVM {
		kernel = append(kernel,
			"no_timer_check", // on a busy machine the kernel's check of its timer fails, and it panics
			// What follows makes an emulated machine faster: its clock is read without a call of the kernel, system calls have no
			// code against faults of real processors, and page tables have one level less.
			"tsc=reliable", "clocksource=tsc", "mitigations=off", "no5lvl")
		if tsc > 0 { // on a busy machine the kernel measures a wrong one, and its clock may run at twice the speed
			kernel = append(kernel, "tsc_early_khz="+strconv.FormatUint(tsc, 10))
		}
	}
	if o.Address != "" {
		prefix := netip.MustParsePrefix(o.Address) // validate has parsed it
		mask := net.IP(net.CIDRMask(prefix.Bits(), 32))
		kernel = append(kernel, "ifname=lan:"+f.networkMAC, fmt.Sprintf("ip=%s:::%s::lan:none", prefix.Addr(), mask))
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-m", strconv.Itoa(o.MemoryMiB),
		"-smp", fmt.Sprintf("%d,sockets=%d,threads=%d", o.CPUs, o.Sockets, o.Threads),
		"-kernel", f.kernel, "-initrd", f.initrd, "-append", strings.Join(kernel, " "),
		"-chardev", "file,id=console,path=" + f.console, "-serial", "chardev:console",
		"-qmp", "unix:" + f.qmp + ",server=on,wait=off",
		"-device", "virtio-rng-pci",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=ready,path=" + f.ready,
		"-device", "virtserialport,chardev=ready,name=vm.ready",
		"-netdev", fmt.Sprintf("user,id=host,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:%d-:22", sshPort),
		"-device", "virtio-net-pci,netdev=host,mac=52:54:00:be:00:01",
	}
	if accelerator == accelKVM {
		args = append(args, "-accel", "kvm", "-cpu", "host")
	} else {
		// Emulated AVX is slower than what Go has without it: hashes and searches take two to three times as long.
		cpu := "max,-avx,-avx2"
		if o.Sockets > 1 || o.Threads > 1 {
			// An emulated AMD processor has no leaf of CPUID for threads and for which CPUs share a cache.
			cpu += ",vendor=GenuineIntel"
		}
		args = append(args, "-accel", "tcg,thread=multi", "-cpu", cpu)
	}
	for i := range o.NUMANodes {
		cpus := o.CPUs / o.NUMANodes
		args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=mem%d,size=%dM", i, o.MemoryMiB/o.NUMANodes),
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d-%d,memdev=mem%d", i, i*cpus, (i+1)*cpus-1, i))
	}
	drive := func(id, path, format, extra string) {
		args = append(args, "-drive", fmt.Sprintf("file=%s,if=none,id=%s,format=%s,discard=unmap%s", path, id, format, extra),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=%s,serial=%s", id, id))
	}
	// A flush of the guest's ends in the host's page cache, which outlives qemu: that is durable enough for [Machine.PowerCut].
	drive("root", f.root, "qcow2", ",cache=unsafe")
	for i, path := range f.disks {
		id := "disk" + strconv.Itoa(i+1)
		if i == 0 && o.WriteLog != "" {
			args = append(args, "-blockdev", loggedDisk(id, path, o.WriteLog), "-device", fmt.Sprintf("virtio-blk-pci,drive=%s,serial=%s", id, id))
			continue
		}
		drive(id, path, "raw", ",cache=unsafe")
	}
	for i, path := range f.shares {
		drive("share"+strconv.Itoa(i+1), path, "raw", ",readonly=on")
	}
	if o.Network != nil {
		args = append(args, "-netdev", "stream,id=lan,server=off,addr.type=unix,addr.path="+f.networkSocket,
			"-device", "virtio-net-pci,netdev=lan,mac="+f.networkMAC)
	}
	return args
}

// loggedDisk describes a disk of which each write is logged. Its flushes are logged, too, and else end in the host's page cache.
func loggedDisk(id, path, log string) string {
	escape := strings.NewReplacer(",", ",,")
	return fmt.Sprintf("driver=blklogwrites,node-name=%s,discard=unmap,file.driver=file,file.filename=%s,file.discard=unmap,file.cache.no-flush=on,"+
		"log.driver=file,log.filename=%s,log.cache.no-flush=on", id, escape.Replace(path), escape.Replace(log))
}

// shareDisk is the device of the i-th share in the machine.
func shareDisk(i int) string {
	return filepath.Join("/dev/disk/by-id", "virtio-share"+strconv.Itoa(i+1))
}
