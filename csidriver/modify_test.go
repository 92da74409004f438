package csidriver_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// limits returns the lines of the kernel's limits of a device, of the root cgroup of v1 or the topmost ones of v2.
func limits(t *testing.T, device string) []string {
	t.Helper()
	var number int
	_, err := fmt.Sscanf(filepath.Base(device), "loop%d", &number)
	require.NoError(t, err)
	files, err := filepath.Glob("/sys/fs/cgroup/*/io.max")
	require.NoError(t, err)
	files = append(files, "/sys/fs/cgroup/io.max", "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device", "/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device")
	var found []string
	for _, file := range files {
		content, _ := os.ReadFile(file)
		for line := range strings.Lines(string(content)) {
			if strings.HasPrefix(line, fmt.Sprintf("7:%d ", number)) {
				found = append(found, line)
			}
		}
	}
	return found
}

func (d *disk) modify(parameters map[string]string) error {
	_, err := d.w.ControllerModifyVolume(d.w.t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: d.id, MutableParameters: parameters})
	return err
}

func TestModifiedVolumesKeepTheirLimits(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("d", 16*mib, rawBlock())
	err := d.modify(map[string]string{"iops": "200", "throughput": "8Mi"})
	if status.Code(err) == codes.InvalidArgument && strings.Contains(err.Error(), "cgroup") {
		t.Skip(err)
	}
	require.NoError(t, err, "before it is attached")
	d.mount()
	device := d.context["device"]
	require.Contains(t, strings.Join(limits(t, device), ""), "8388608")
	w.start()
	require.NoError(t, d.modify(map[string]string{"iops": "300"}))
	require.NotContains(t, strings.Join(limits(t, device), ""), "8388608", "what is not named is not limited")
	require.Contains(t, strings.Join(limits(t, device), ""), "300")
	require.NoError(t, d.modify(map[string]string{"iops": "max"}))
	require.Empty(t, limits(t, device))

	require.NoError(t, d.modify(map[string]string{"iops": "400"}))
	d.unmount()
	require.Empty(t, limits(t, device), "the next volume may have the device")
	d.mount()
	require.Contains(t, strings.Join(limits(t, d.context["device"]), ""), "400")
	d.unmount()

	require.NoError(t, d.modify(nil), "nothing is named, so nothing is limited")
	requireCode(t, codes.InvalidArgument, d.modify(map[string]string{"iops": "many"}))
	requireCode(t, codes.InvalidArgument, d.modify(map[string]string{"colour": "blue"}))
	require.NoError(t, d.remove())
	requireCode(t, codes.NotFound, d.modify(map[string]string{"iops": "1"}))

	made, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "made", VolumeCapabilities: []*csi.VolumeCapability{rawBlock()},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 16 * mib}, MutableParameters: map[string]string{"throughput": "3Mi"}})
	require.NoError(t, err)
	d = &disk{w: w, id: made.GetVolume().GetVolumeId(), capability: rawBlock(), staging: d.staging, target: d.target}
	d.mount()
	require.Contains(t, strings.Join(limits(t, d.context["device"]), ""), "3145728")
	d.unmount()
}

// TestLimitsBoundAContainer writes to the device of a raw block volume faster than its limit allows. Only a lower bound of the duration is
// checked: half of what the limit gives, because the kernel lets a burst pass.
func TestLimitsBoundAContainer(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("d", 16*mib, rawBlock())
	err := d.modify(map[string]string{"throughput": "2Mi"})
	if status.Code(err) == codes.InvalidArgument && strings.Contains(err.Error(), "cgroup") {
		t.Skip(err)
	}
	require.NoError(t, err)
	d.mount()
	device, err := os.OpenFile(d.target, os.O_WRONLY|unix.O_DIRECT, 0)
	require.NoError(t, err)
	buffer, err := unix.Mmap(-1, 0, mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
	require.NoError(t, err)
	start := time.Now()
	for i := range 8 {
		_, err := device.WriteAt(buffer, int64(i)*mib)
		require.NoError(t, err)
	}
	took := time.Since(start)
	require.NoError(t, errors.Join(unix.Munmap(buffer), device.Close()))
	require.Greater(t, took, 2*time.Second, "8 MiB at 2 MiB/s")
	t.Logf("8 MiB at 2 MiB/s took %s", took)
	d.unmount()
	require.NoError(t, d.remove())
}
