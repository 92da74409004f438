package cm

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/kubelet/cri/fake"
)

const (
	testMemory  = 8 << 30
	testMaxPIDs = 30_000
)

// nodeFixture has NodeCgroups below a cgroup of their own.
type nodeFixture struct {
	*NodeCgroups
	root    string
	cgroups *Manager
	runtime *fake.Runtime
	events  *record.FakeRecorder
	clock   *clocktesting.FakeClock
	swap    int64
}

func newNodeFixture(t *testing.T, change func(root string, c *NodeCgroupsConfig)) *nodeFixture {
	t.Helper()
	f := &nodeFixture{
		root:   "/berth-" + strings.ReplaceAll(fmt.Sprintf("%d-%s", os.Getpid(), t.Name()), "/", "-"),
		events: record.NewFakeRecorder(20), clock: clocktesting.NewFakeClock(time.Now()),
	}
	f.runtime = fake.New(f.clock)
	var config NodeCgroupsConfig
	change(f.root, &config)
	var err error
	f.cgroups, err = New(Deps{}, Config{CgroupRoot: f.root, Driver: config.Driver})
	require.NoError(t, err)
	f.NodeCgroups, err = NewNodeCgroups(NodeCgroupsDeps{
		Cgroups: f.cgroups, Runtime: f.runtime, Node: &corev1.ObjectReference{Kind: "Node", Name: "n"}, Recorder: f.events,
		Clock: f.clock, Logger: testlog.New(t, slog.DiscardHandler),
		Capacity: func() (corev1.ResourceList, error) {
			return corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": *resource.NewQuantity(testMemory, resource.BinarySI)}, nil
		},
		MaxPIDs: func() (int64, error) { return testMaxPIDs, nil },
		Swap:    func() (int64, error) { return f.swap, nil },
	}, config)
	require.NoError(t, err)
	return f
}

func (f *nodeFixture) nextEvent(t *testing.T) string {
	t.Helper()
	select {
	case event := <-f.events.Events:
		return event
	case <-time.After(time.Minute):
		require.Fail(t, "no event")
		return ""
	}
}

// needsCgroupV1 skips a test that creates cgroups and reads the files of v1.
func needsCgroupV1(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v1")
	}
}

func (f *nodeFixture) removeRoot(t *testing.T) {
	t.Cleanup(func() { require.NoError(t, f.cgroups.RemoveRoot(context.Background())) })
}

func TestNodeCgroupsDetectDriver(t *testing.T) {
	for name, c := range map[string]struct {
		configured Driver
		reported   *runtimeapi.CgroupDriver
		err        error
		want       Driver
	}{
		"neither":                      {want: DriverCgroupfs},
		"the configuration alone":      {configured: DriverSystemd, want: DriverSystemd},
		"the runtime alone":            {reported: ptr.To(runtimeapi.CgroupDriver_SYSTEMD), want: DriverSystemd},
		"the runtime takes precedence": {DriverSystemd, ptr.To(runtimeapi.CgroupDriver_CGROUPFS), nil, DriverCgroupfs},
		"an old runtime":               {configured: DriverSystemd, err: status.Error(codes.Unimplemented, "no"), want: DriverSystemd},
	} {
		t.Run(name, func(t *testing.T) {
			f := newNodeFixture(t, func(_ string, config *NodeCgroupsConfig) { config.Driver = c.configured })
			if c.reported != nil {
				f.runtime.SetCgroupDriver(*c.reported)
			}
			if c.err != nil {
				f.runtime.FailNext("RuntimeConfig", c.err)
			}
			got, err := f.detectDriver(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			metrics := 0
			if c.reported == nil {
				metrics = 1
				require.NoError(t, testutil.CollectAndCompare(f.NodeCgroups, strings.NewReader(`
					# HELP kubelet_cri_losing_support The Kubernetes version that the container runtime is too old for
					# TYPE kubelet_cri_losing_support gauge
					kubelet_cri_losing_support{version="1.37.0"} 1
				`)))
			}
			require.Equal(t, metrics, testutil.CollectAndCount(f.NodeCgroups))
		})
	}
}

// TestNodeCgroupsOfAnUnknownDriver: cgroups of another driver than the runtime's would be those of no container.
func TestNodeCgroupsOfAnUnknownDriver(t *testing.T) {
	f := newNodeFixture(t, func(string, *NodeCgroupsConfig) {})
	f.removeRoot(t)
	f.runtime.SetCgroupDriver(runtimeapi.CgroupDriver_SYSTEMD)
	f.runtime.FailNext("RuntimeConfig", status.Error(codes.DeadlineExceeded, "busy"))
	require.ErrorContains(t, f.Setup(t.Context()), "read the cgroup driver of the container runtime")
	select {
	case <-f.Ready():
		require.Fail(t, "it is not known which cgroups to create")
	default:
	}
}

// TestNodeCgroupsWaitForTheRuntime creates no cgroup before the runtime has reported its driver, and renames none after
// that.
func TestNodeCgroupsWaitForTheRuntime(t *testing.T) {
	f := newNodeFixture(t, func(string, *NodeCgroupsConfig) {})
	f.runtime.FailNext("RuntimeConfig", status.Error(codes.Unavailable, "connection refused"))
	require.NoError(t, f.Setup(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, f.Wait(ctx), "cgroup driver")
	needsCgroupV1(t)
	f.removeRoot(t)
	f.runtime.SetCgroupDriver(runtimeapi.CgroupDriver_CGROUPFS)
	require.NoError(t, f.Setup(t.Context()))
	require.NoError(t, f.Wait(t.Context()))
	f.runtime.SetCgroupDriver(runtimeapi.CgroupDriver_SYSTEMD)
	require.NoError(t, f.Setup(t.Context()))
	require.Equal(t, DriverCgroupfs, f.cgroups.Driver())
}

// cgroupFile is the path of a file of a v1 cgroup.
func cgroupFile(t *testing.T, controller, cgroup, file string) string {
	t.Helper()
	dir, err := cgroupslib.FindCgroupMountpoint("", controller)
	require.NoError(t, err)
	return filepath.Join(dir, cgroup, file)
}

func TestAllocatableIsEnforced(t *testing.T) {
	needsCgroupV1(t)
	reserved := corev1.ResourceList{
		"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi"), "pid": resource.MustParse("1000"),
	}
	f := newNodeFixture(t, func(root string, c *NodeCgroupsConfig) {
		c.Enforcement = Enforcement{
			SystemReserved: reserved, KubeReserved: reserved,
			Enforce:              []string{EnforcePods, EnforceSystemReserved, EnforceKubeReservedCompressible},
			SystemReservedCgroup: root + "/system", KubeReservedCgroup: root + "/kube",
		}
	})
	f.removeRoot(t)
	require.ErrorContains(t, f.Setup(t.Context()), "systemReservedCgroup", "its cgroup does not exist yet")
	require.Regexp(t, `^Warning FailedNodeAllocatableEnforcement Failed to enforce System Reserved Cgroup Limits on "/berth`,
		f.nextEvent(t))
	for _, controller := range []string{"cpu", "memory", "pids"} {
		for _, cgroup := range []string{"/system", "/kube"} {
			dir := cgroupFile(t, controller, f.root+cgroup, "")
			require.NoError(t, os.MkdirAll(dir, 0o755))
			t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
		}
	}
	require.NoError(t, f.Setup(t.Context()))
	require.Equal(t, "Normal NodeAllocatableEnforced Updated limits on system reserved cgroup "+f.root+"/system", f.nextEvent(t))
	require.Equal(t, "Normal NodeAllocatableEnforced Updated limits on kube reserved cgroup "+f.root+"/kube", f.nextEvent(t))
	require.NoError(t, f.Start(t.Context()))
	require.Equal(t, "Normal NodeAllocatableEnforced Updated Node Allocatable limit across pods", f.nextEvent(t))
	for file, content := range map[string]string{
		cgroupFile(t, "memory", f.root+"/kubepods", "memory.limit_in_bytes"): fmt.Sprint(testMemory - 128<<20),
		cgroupFile(t, "cpu", f.root+"/kubepods", "cpu.shares"):               fmt.Sprint(Shares(4000 - 200)),
		cgroupFile(t, "pids", f.root+"/kubepods", "pids.max"):                fmt.Sprint(testMaxPIDs - 2000),
		cgroupFile(t, "memory", f.root+"/system", "memory.limit_in_bytes"):   fmt.Sprint(64 << 20),
		cgroupFile(t, "cpu", f.root+"/system", "cpu.shares"):                 "102",
		cgroupFile(t, "pids", f.root+"/system", "pids.max"):                  "1000",
		cgroupFile(t, "cpu", f.root+"/kube", "cpu.shares"):                   "102",
		cgroupFile(t, "pids", f.root+"/kube", "pids.max"):                    "max",
	} {
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, content, strings.TrimSpace(string(got)), file)
	}
}

// TestAllocatableIsTriedAgain reserves more than there is until the configuration changes.
func TestAllocatableIsTriedAgain(t *testing.T) {
	needsCgroupV1(t)
	f := newNodeFixture(t, func(_ string, c *NodeCgroupsConfig) {
		c.Enforcement.SystemReserved = corev1.ResourceList{"memory": resource.MustParse("1Ei")}
	})
	f.removeRoot(t)
	require.NoError(t, f.Setup(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Start(t.Context()) }()
	require.Contains(t, f.nextEvent(t), "Warning FailedNodeAllocatableEnforcement Failed to update Node Allocatable Limits")
	f.config.Enforcement.SystemReserved = nil // Start waits for the clock before it reads it
	require.Eventually(t, func() bool {
		f.clock.Step(enforceRetry)
		return len(done) == 1
	}, time.Minute, time.Millisecond)
	require.NoError(t, <-done)
	require.Contains(t, f.nextEvent(t), "NodeAllocatableEnforced")

	f = newNodeFixture(t, func(_ string, c *NodeCgroupsConfig) { c.Enforcement.Enforce = []string{EnforceNone} })
	require.NoError(t, f.Start(t.Context()))
	require.Empty(t, f.events.Events)
}

func TestPreflightRejectsMachines(t *testing.T) {
	v1 := !cgroupslib.IsCgroup2UnifiedMode()
	reject := func(want string, change func(c *NodeCgroupsConfig)) {
		t.Helper()
		f := newNodeFixture(t, func(_ string, c *NodeCgroupsConfig) { change(c) })
		f.swap = 1
		require.ErrorContains(t, f.Preflight(), want)
	}
	if v1 {
		reject("failCgroupV1", func(c *NodeCgroupsConfig) { c.FailCgroupV1 = true })
		reject("singleProcessOOMKill", func(c *NodeCgroupsConfig) { c.SingleProcessOOMKill = ptr.To(false) })
	}
	reject("failSwapOn", func(c *NodeCgroupsConfig) { c.FailSwapOn = true })
	f := newNodeFixture(t, func(_ string, c *NodeCgroupsConfig) { c.FailSwapOn = true })
	require.NoError(t, f.Preflight(), "it has no swap")

	f = newNodeFixture(t, func(string, *NodeCgroupsConfig) {})
	f.warnCgroupV1(true)
	require.Empty(t, f.events.Events)
	f.warnCgroupV1(false)
	require.Contains(t, f.nextEvent(t), "Warning CgroupV1 ")
}

func TestMissingNodeCgroupsDependencyIsNamed(t *testing.T) {
	_, err := NewNodeCgroups(NodeCgroupsDeps{}, NodeCgroupsConfig{})
	require.EqualError(t, err, "cm: NodeCgroupsDeps.Cgroups is required")
}
