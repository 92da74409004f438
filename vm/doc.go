// Package vm boots Debian and Ubuntu machines in qemu and runs programs in them. Berth's tests use it for what the machine they
// run on does not have: systemd, cgroup v2, several NUMA nodes, several disks, a reboot, a power cut.
//
// [Build] makes an image from the packages of a release once and keeps it in a cache. [Start] boots it with a disk of its own,
// so that machines never change the image. [Machine.Run] runs a command over SSH with its output and exit code;
// [Machine.CopyTo] and [Machine.CopyFrom] move files. A machine ends with the process that started it.
//
// Without KVM qemu emulates the processor, which makes programs some 15 times slower. Guests reach each other over a
// [Network], and nothing outside.
package vm
