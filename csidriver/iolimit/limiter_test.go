package iolimit_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/csidriver/iolimit"
	"github.com/berth-dev/berth/internal/loopdev"
)

const mib = 1 << 20

// fixture is a limiter and a loop device.
type fixture struct {
	*iolimit.Limiter
	device iolimit.Device
	path   string
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it attaches loop devices and makes cgroups")
	}
	limiter := iolimit.New(nil)
	if err := limiter.Supported(); err != nil {
		t.Skip(err)
	}
	image, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)
	defer image.Close()
	require.NoError(t, image.Truncate(16*mib))
	devices := loopdev.New()
	attached, err := devices.Attach(image, loopdev.Options{SectorSize: 512})
	if err != nil {
		t.Skip("needs loop devices: ", err)
	}
	f := fixture{Limiter: limiter, device: iolimit.Device{Major: loopdev.Major, Minor: uint32(attached.Number)}, path: devices.Path(attached.Number)}
	t.Cleanup(func() {
		require.NoError(t, limiter.Apply(f.device, iolimit.Limits{}))
		require.NoError(t, devices.Detach(attached))
	})
	return f
}

// newCgroup makes a cgroup in the hierarchy of the controller of I/O.
func newCgroup(t *testing.T, parent, name string) string {
	t.Helper()
	dir := filepath.Join(parent, name)
	require.NoError(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	return dir
}

// hierarchy returns the mount point of the hierarchy of the controller of I/O.
func hierarchy(t *testing.T) (dir string, legacy bool) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	require.NoError(t, err)
	for _, m := range mounts {
		if slices.Contains(strings.Split(m.VFSOptions, ","), "blkio") {
			return m.Mountpoint, true
		}
	}
	return "/sys/fs/cgroup", false
}

// limitsOf returns what the kernel has of the device in the cgroup.
func (f fixture) limitsOf(t *testing.T, cgroup string) string {
	t.Helper()
	var found []string
	for _, name := range []string{"io.max", "blkio.throttle.write_bps_device", "blkio.throttle.read_iops_device"} {
		content, _ := os.ReadFile(filepath.Join(cgroup, name))
		for line := range strings.Lines(string(content)) {
			if strings.HasPrefix(line, f.device.String()+" ") {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	return strings.Join(found, ", ")
}

// write writes to the device from a cgroup, past the page cache, and returns how long that took.
func (f fixture) write(t *testing.T, cgroup string, chunks int) time.Duration {
	t.Helper()
	script := fmt.Sprintf("echo $$ > %s/cgroup.procs && exec dd if=/dev/zero of=%s oflag=direct bs=64k count=%d status=none", cgroup, f.path, chunks)
	start := time.Now()
	output, err := exec.Command("sh", "-c", script).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return time.Since(start)
}

func TestWritesTakeAsLongAsTheLimitSays(t *testing.T) {
	f := newFixture(t)
	root, legacy := hierarchy(t)
	group := newCgroup(t, root, fmt.Sprintf("berth-iolimit-%d", os.Getpid()))
	limits := iolimit.Limits{Throughput: 2 * mib, IOPS: 1000}
	require.NoError(t, f.Apply(f.device, limits))
	want := fmt.Sprintf("%s rbps=2097152 wbps=2097152 riops=1000 wiops=1000", f.device)
	if legacy {
		want = fmt.Sprintf("%[1]s 2097152, %[1]s 1000", f.device)
	}
	require.Equal(t, want, f.limitsOf(t, group))
	require.NoError(t, f.Apply(f.device, limits), "again")
	require.GreaterOrEqual(t, f.write(t, group, 64), 1500*time.Millisecond, "4 MiB at 2 MiB a second")

	require.NoError(t, f.Apply(f.device, iolimit.Limits{IOPS: 20}))
	require.GreaterOrEqual(t, f.write(t, group, 40), 1500*time.Millisecond, "40 writes at 20 a second")

	require.NoError(t, f.Apply(f.device, iolimit.Limits{}))
	require.Empty(t, f.limitsOf(t, group))
	require.Less(t, f.write(t, group, 8), 30*time.Second)
}

func TestNewCgroupsAreLimited(t *testing.T) {
	f := newFixture(t)
	root, legacy := hierarchy(t)
	if !legacy {
		t.Skip("with cgroup v2 the limits of the topmost cgroups hold below them")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	require.NoError(t, f.Apply(f.device, iolimit.Limits{Throughput: 5 * mib}))
	group := newCgroup(t, root, fmt.Sprintf("berth-iolimit-new-%d", os.Getpid()))
	below := newCgroup(t, newCgroup(t, group, "pod"), "container")
	require.Eventually(t, func() bool { return f.limitsOf(t, below) != "" }, time.Minute, 10*time.Millisecond)
	require.Contains(t, f.limitsOf(t, below), fmt.Sprint(5*mib))
	require.NoError(t, f.Apply(f.device, iolimit.Limits{}))
	require.Empty(t, f.limitsOf(t, below))
	cancel()
	require.NoError(t, <-ended)
}
