package containermetrics

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/cadvisor/container/common"
	"github.com/google/cadvisor/fs"
	_ "github.com/google/cadvisor/fs/btrfs/install" // the file systems that are reported
	_ "github.com/google/cadvisor/fs/vfs/install"
	v1 "github.com/google/cadvisor/info/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// disks are the machine's file systems on disks, as they are at one moment.
type disks struct {
	mounts fs.FsInfo
	all    []fs.Fs
}

func readDisks() (*disks, error) {
	mounts, err := fs.NewFsInfo(fs.Context{})
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	all, err := mounts.GetGlobalFsInfo()
	if err != nil {
		return nil, fmt.Errorf("measure the machine's file systems: %w", err)
	}
	return &disks{mounts: mounts, all: all}, nil
}

// ofDisks returns the statistics of input and output that each file system has of its disk, too.
func ofDisks(io *v1.DiskIoStats) []*[]v1.PerDiskStats {
	return []*[]v1.PerDiskStats{&io.IoServiced, &io.IoMerged, &io.IoTime, &io.IoServiceTime, &io.IoWaitTime, &io.IoQueued, &io.Sectors}
}

// named returns a cgroup's input and output with the names of its devices.
func (d *disks) named(io v1.DiskIoStats) v1.DiskIoStats {
	for _, list := range append(ofDisks(&io), &io.IoServiceBytes, &io.IoCostUsage, &io.IoCostWait, &io.IoCostIndebt, &io.IoCostIndelay) {
		*list = slices.Clone(*list)
	}
	common.AssignDeviceNamesToDiskStats(d, &io)
	return io
}

// DeviceName implements common.DeviceNamer. A device that has no name anywhere has its numbers, because each metric needs its own labels.
func (d *disks) DeviceName(major, minor uint64) (string, bool) {
	for i := range d.all {
		if uint64(d.all[i].Major) == major && uint64(d.all[i].Minor) == minor {
			return d.all[i].Device, true
		}
	}
	numbers := fmt.Sprintf("%d:%d", major, minor)
	if target, err := os.Readlink(filepath.Join("/sys/dev/block", numbers)); err == nil {
		return filepath.Join("/dev", filepath.Base(target)), true
	}
	return numbers, true
}

// reportAll adds all file systems to the machine's usage. What they have read and written is counted by their disks, so that it is not
// reported a second time as the root cgroup's.
func (d *disks) reportAll(stats *v1.ContainerStats) {
	reported := map[string]bool{}
	for i := range d.all {
		one := convert(&d.all[i])
		one.Usage, reported[one.Device] = d.all[i].Capacity-d.all[i].Free, true
		stats.Filesystem = append(stats.Filesystem, one)
	}
	for _, list := range ofDisks(&stats.DiskIo) {
		*list = slices.DeleteFunc(*list, func(disk v1.PerDiskStats) bool { return reported[disk.Device] })
	}
}

// layer returns what a container has written, on the file system that its layer is on; none if that is not known.
func (d *disks) layer(written *runtimeapi.FilesystemUsage) []v1.FsStats {
	device, err := d.mounts.GetDirFsDevice(written.GetFsId().GetMountpoint())
	if err != nil {
		return nil
	}
	for i := range d.all {
		if d.all[i].Device == device.Device {
			inodes := written.GetInodesUsed().GetValue()
			return []v1.FsStats{{
				Device: device.Device, Type: d.all[i].Type.String(), Limit: d.all[i].Capacity, Available: d.all[i].Available,
				Usage: written.GetUsedBytes().GetValue(), BaseUsage: written.GetUsedBytes().GetValue(), HasInodes: true, Inodes: inodes,
			}}
		}
	}
	return nil
}

func convert(in *fs.Fs) v1.FsStats {
	out := v1.FsStats{
		Device: in.Device, Type: in.Type.String(), Limit: in.Capacity, Available: in.Available,
		ReadsCompleted: in.DiskStats.ReadsCompleted, ReadsMerged: in.DiskStats.ReadsMerged, SectorsRead: in.DiskStats.SectorsRead,
		ReadTime: in.DiskStats.ReadTime, WritesCompleted: in.DiskStats.WritesCompleted, WritesMerged: in.DiskStats.WritesMerged,
		SectorsWritten: in.DiskStats.SectorsWritten, WriteTime: in.DiskStats.WriteTime, IoInProgress: in.DiskStats.IoInProgress,
		IoTime: in.DiskStats.IoTime, WeightedIoTime: in.DiskStats.WeightedIoTime,
	}
	if in.Inodes != nil && in.InodesFree != nil {
		out.HasInodes, out.Inodes, out.InodesFree = true, *in.Inodes, *in.InodesFree
	}
	return out
}
