package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/cri/fake"
)

// grounded is a Kubelet whose control groups lie below one of its own.
func grounded(t *testing.T, change func(*Config)) (*Kubelet, *fake.Runtime, *record.FakeRecorder, *clocktesting.FakeClock) {
	t.Helper()
	dir, clk := t.TempDir(), clocktesting.NewFakeClock(time.Now())
	runtime, events := fake.New(clk), record.NewFakeRecorder(20)
	cfg := Config{
		NodeName: "n", NodeIPs: []net.IP{net.IPv4(10, 0, 0, 1)}, RootDir: filepath.Join(dir, "root"),
		PodLogsDir: filepath.Join(dir, "log"), CgroupRoot: fmt.Sprintf("/berth-ground-%d-%s", os.Getpid(), t.Name()),
	}
	cfg.CgroupRoot = strings.ReplaceAll(cfg.CgroupRoot, "/Test", "-")
	change(&cfg)
	k, err := New(cfg, Deps{Runtime: runtime, Recorder: events, Clock: clk, Logger: testlog.New(t, slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.Close()) })
	return k, runtime, events, clk
}

func told(t *testing.T, events *record.FakeRecorder) string {
	t.Helper()
	select {
	case event := <-events.Events:
		return event
	case <-time.After(time.Minute):
		require.Fail(t, "no event")
		return ""
	}
}

func TestRuntimeSaysTheCgroupDriver(t *testing.T) {
	away := status.Error(codes.Unavailable, "connection refused")
	for name, c := range map[string]struct {
		configured cm.Driver
		said       *runtimeapi.CgroupDriver
		err        error
		want       cm.Driver
	}{
		"nobody does":                {want: cm.DriverCgroupfs},
		"the configuration alone":    {configured: cm.DriverSystemd, want: cm.DriverSystemd},
		"the runtime alone":          {said: ptr.To(runtimeapi.CgroupDriver_SYSTEMD), want: cm.DriverSystemd},
		"the runtime has precedence": {cm.DriverSystemd, ptr.To(runtimeapi.CgroupDriver_CGROUPFS), nil, cm.DriverCgroupfs},
		"an error":                   {configured: cm.DriverSystemd, err: errors.New("no"), want: cm.DriverSystemd},
	} {
		t.Run(name, func(t *testing.T) {
			k, runtime, _, _ := grounded(t, func(c2 *Config) { c2.CgroupDriver = c.configured })
			if c.said != nil {
				runtime.SetCgroupDriver(*c.said)
			}
			if c.err != nil {
				runtime.FailNext("RuntimeConfig", c.err)
			}
			got, _ := k.askDriver(t.Context())
			require.Equal(t, c.want, got)
		})
	}

	// A runtime that is away says nothing, and no group is made before it does.
	k, runtime, _, _ := grounded(t, func(*Config) {})
	runtime.FailNext("RuntimeConfig", away)
	require.NoError(t, k.ground(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, k.builder.PreparePod(ctx, testPod(func(*corev1.Pod) {})), "cgroup driver")
	require.ErrorContains(t, k.builder.ReleasePod(ctx, "u"), "cgroup driver")
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("making groups needs root and cgroup v1")
	}
	runtime.SetCgroupDriver(runtimeapi.CgroupDriver_CGROUPFS)
	t.Cleanup(func() { require.NoError(t, k.cgroups.RemoveRoot(context.Background())) })
	require.NoError(t, k.ground(t.Context()))
	require.NoError(t, k.builder.PreparePod(t.Context(), testPod(func(p *corev1.Pod) { p.UID = "u-1" })))
	uids, err := k.cgroups.Pods()
	require.NoError(t, err)
	require.Len(t, uids, 1)
	runtime.SetCgroupDriver(runtimeapi.CgroupDriver_SYSTEMD)
	require.NoError(t, k.ground(t.Context()))
	require.Equal(t, cm.DriverCgroupfs, k.cgroups.Driver(), "groups that are there are not renamed")
}

// group is a file of a control group of version 1.
func groupFile(t *testing.T, controller, group, file string) string {
	t.Helper()
	dir, err := cgroupslib.FindCgroupMountpoint("", controller)
	require.NoError(t, err)
	return filepath.Join(dir, group, file)
}

func TestAllocatableIsEnforced(t *testing.T) {
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v1")
	}
	reserved := corev1.ResourceList{
		"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi"), "pid": resource.MustParse("1000"),
	}
	k, _, events, _ := grounded(t, func(c *Config) {
		c.SystemReserved, c.KubeReserved = reserved, reserved
		c.EnforceNodeAllocatable = []string{EnforcePods, EnforceSystemReserved, EnforceKubeReservedCompressible}
		c.SystemReservedCgroup, c.KubeReservedCgroup = c.CgroupRoot+"/system", c.CgroupRoot+"/kube"
	})
	root := k.cfg.CgroupRoot
	t.Cleanup(func() { require.NoError(t, k.cgroups.RemoveRoot(context.Background())) })

	// Whoever starts the system's programs has not made their group.
	require.ErrorContains(t, k.ground(t.Context()), "systemReservedCgroup")
	require.Regexp(t, `^Warning FailedNodeAllocatableEnforcement Failed to enforce System Reserved Cgroup Limits on "/berth`,
		told(t, events))
	for _, controller := range []string{"cpu", "memory", "pids"} {
		for _, group := range []string{"/system", "/kube"} {
			dir := groupFile(t, controller, root+group, "")
			require.NoError(t, os.MkdirAll(dir, 0o755))
			t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
		}
	}
	require.NoError(t, k.ground(t.Context()))
	require.Equal(t, "Normal NodeAllocatableEnforced Updated limits on system reserved cgroup "+root+"/system", told(t, events))
	require.Equal(t, "Normal NodeAllocatableEnforced Updated limits on kube reserved cgroup "+root+"/kube", told(t, events))
	require.NoError(t, k.keepAllocatable(t.Context()))
	require.Equal(t, "Normal NodeAllocatableEnforced Updated Node Allocatable limit across pods", told(t, events))

	capacity, _, err := k.node.Resources()
	require.NoError(t, err)
	usage, err := k.machine.Usage()
	require.NoError(t, err)
	want := map[string]string{
		groupFile(t, "memory", root+"/kubepods", "memory.limit_in_bytes"): fmt.Sprint((capacity.Memory().Value() - 128<<20) / 4096 * 4096),
		groupFile(t, "cpu", root+"/kubepods", "cpu.shares"):               fmt.Sprint(cm.Shares(capacity.Cpu().MilliValue() - 200)),
		groupFile(t, "pids", root+"/kubepods", "pids.max"):                fmt.Sprint(usage.PIDCapacity - 2000),
		groupFile(t, "memory", root+"/system", "memory.limit_in_bytes"):   fmt.Sprint(64 << 20),
		groupFile(t, "cpu", root+"/system", "cpu.shares"):                 "102",
		groupFile(t, "pids", root+"/system", "pids.max"):                  "1000",
		groupFile(t, "cpu", root+"/kube", "cpu.shares"):                   "102",
		groupFile(t, "pids", root+"/kube", "pids.max"):                    "max",
	}
	for file, content := range want {
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, content, strings.TrimSpace(string(got)), file)
	}
}

// TestAllocatableIsTriedAgain reserves more than there is: nothing fits until the configuration changes, which the test
// does.
func TestAllocatableIsTriedAgain(t *testing.T) {
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v1")
	}
	k, _, events, clk := grounded(t, func(c *Config) {
		c.SystemReserved = corev1.ResourceList{"memory": resource.MustParse("1Ei")}
	})
	t.Cleanup(func() { require.NoError(t, k.cgroups.RemoveRoot(context.Background())) })
	require.NoError(t, k.ground(t.Context()))
	done := make(chan error, 1)
	go func() { done <- k.keepAllocatable(t.Context()) }()
	require.Contains(t, told(t, events), "Warning FailedNodeAllocatableEnforcement Failed to update Node Allocatable Limits")
	k.cfg.SystemReserved = nil // its reader waits, or will before it reads
	require.Eventually(t, func() bool {
		clk.Step(enforceEvery) // others wait for this clock too: that there are waiters says nothing
		return len(done) == 1
	}, time.Minute, time.Millisecond)
	require.NoError(t, <-done)
	require.Contains(t, told(t, events), "NodeAllocatableEnforced")

	k, _, events, _ = grounded(t, func(c *Config) { c.EnforceNodeAllocatable = []string{EnforceNone} })
	require.NoError(t, k.keepAllocatable(t.Context()))
	require.Empty(t, events.Events)
}

func TestResourceConfigurationIsChecked(t *testing.T) {
	for want, cfg := range map[string]*kubeletconfig.KubeletConfiguration{
		"want cgroupfs or systemd":                  {CgroupDriver: "docker"},
		"memorySwap.swapBehavior":                   {MemorySwap: kubeletconfig.MemorySwapConfiguration{SwapBehavior: "Unlimited"}},
		`"all" is not one of none, pods`:            {EnforceNodeAllocatable: []string{"all"}},
		"allows nothing beside it":                  {EnforceNodeAllocatable: []string{"pods", "none"}},
		"stands twice":                              {EnforceNodeAllocatable: []string{"pods", "pods"}},
		"needs systemReservedCgroup":                {EnforceNodeAllocatable: []string{"system-reserved"}},
		"needs kubeReservedCgroup":                  {EnforceNodeAllocatable: []string{"kube-reserved-compressible"}},
		"kube-reserved-compressible exclude each o": {EnforceNodeAllocatable: []string{"kube-reserved", "kube-reserved-compressible"}},
	} {
		_, err := NewMainKubelet(cfg, nil, true)
		require.ErrorContains(t, err, want)
	}
	cfg, err := configOf(&kubeletconfig.KubeletConfiguration{
		MemorySwap: kubeletconfig.MemorySwapConfiguration{SwapBehavior: "LimitedSwap"}, SingleProcessOOMKill: ptr.To(true),
		EnforceNodeAllocatable: []string{"pods", "system-reserved"}, SystemReservedCgroup: "/system", CgroupDriver: "systemd",
		FailSwapOn: ptr.To(true), FailCgroupV1: ptr.To(true),
	}, os.Hostname)
	require.NoError(t, err)
	require.Equal(t, cm.LimitedSwap, cfg.SwapBehavior)
	require.True(t, *cfg.SingleProcessOOMKill)
	require.Equal(t, "/system", cfg.SystemReservedCgroup)
	require.Equal(t, cm.DriverSystemd, cfg.CgroupDriver)
	require.True(t, cfg.FailSwapOn && cfg.FailCgroupV1)
}

func TestMachineThatIsNotWanted(t *testing.T) {
	old := !cgroupslib.IsCgroup2UnifiedMode()
	k, _, events, _ := grounded(t, func(c *Config) { c.FailCgroupV1, c.SwapBehavior = true, cm.LimitedSwap })
	if old {
		require.ErrorContains(t, k.checkGround(), "failCgroupV1")
		k.cfg.FailCgroupV1, k.cfg.SingleProcessOOMKill = false, ptr.To(false)
		require.ErrorContains(t, k.checkGround(), "singleProcessOOMKill")
		k.cfg.SingleProcessOOMKill = nil
	}
	require.NoError(t, k.checkGround())
	k.oldGroups(true)
	require.Empty(t, events.Events)
	k.oldGroups(false)
	require.Contains(t, told(t, events), "Warning CgroupV1 ")
	facts, err := k.machine.Info()
	require.NoError(t, err)
	k.cfg.FailSwapOn = true
	if facts.Swap > 0 {
		require.ErrorContains(t, k.checkGround(), "failSwapOn")
	} else {
		require.NoError(t, k.checkGround())
	}
	k.word(8<<30, false)
	got := k.builder.Resources(testPod(func(*corev1.Pod) {}), &corev1.Container{})
	require.Equal(t, old, got.Unified == nil)
}
