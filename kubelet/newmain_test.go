package kubelet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/cadvisor/info/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/freeport"
	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/cadvisor"
	podconfig "github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
	"github.com/berth-dev/berth/kubelet/util/oom"
)

func newMain(t *testing.T, config *kubeletconfig.KubeletConfiguration, options ...kubelet.Option) *kubelet.Kubelet {
	t.Helper()
	dir := t.TempDir()
	config.PodLogsDir = filepath.Join(dir, "log")
	k, err := kubelet.NewMainKubelet(config, &kubelet.KubeletDeps{
		DockerClient: fake.New(clocktesting.NewFakePassiveClock(time.Now())), Recorder: record.NewFakeRecorder(10),
		Options: append([]kubelet.Option{
			kubelet.WithRootDir(filepath.Join(dir, "root")), kubelet.WithNode("n", net.IPv4(10, 0, 0, 1)),
		}, options...),
	}, true)
	require.NoError(t, err)
	return k
}

func TestConfigurationIsTakenOver(t *testing.T) {
	k := newMain(t, &kubeletconfig.KubeletConfiguration{ClusterDomain: "d", MaxPods: 7, ClusterDNS: []string{"10.0.0.10"}})
	require.EqualValues(t, 7, k.GetConfiguration().MaxPods)
	require.Equal(t, time.Minute, k.ResyncInterval())
	require.Equal(t, "n", k.GetHostname())
	ip, err := k.GetHostIP()
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1", ip.String())
	require.True(t, strings.HasSuffix(k.GetPodDir("u"), "/root/pods/u"))
	node, err := k.GetNode()
	require.NoError(t, err)
	require.Equal(t, "n", node.Name)
	require.Equal(t, "n", node.Labels[corev1.LabelHostname])
	servers, _, err := k.GetClusterDNS(&corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}})
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.10"}, servers)
	_, found := k.GetPodByFullName("a_b")
	require.False(t, found)
	machine, err := k.GetCachedMachineInfo()
	require.NoError(t, err)
	require.Positive(t, machine.NumCores)
	again, err := k.GetCachedMachineInfo()
	require.NoError(t, err)
	require.Same(t, machine, again)
	require.True(t, k.LatestLoopEntryTime().IsZero(), "nothing runs")
	_, err = k.GetKubeClient().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	require.ErrorContains(t, err, "without an API server")
}

func TestBadConfiguration(t *testing.T) {
	tooLong := &metav1.Duration{Duration: time.Hour}
	for want, config := range map[string]*kubeletconfig.KubeletConfiguration{
		"kubeCfg is nil": nil,
		"cgroupDriver":   {CgroupDriver: "x"},
		"kubeReserved":   {KubeReserved: map[string]string{"cpu": "-1"}},
		"systemReserved": {SystemReserved: map[string]string{"gold": "1"}},
		"maxContainerRestartPeriod": {CrashLoopBackOff: kubeletconfig.CrashLoopBackOffConfig{
			MaxContainerRestartPeriod: tooLong,
		}},
		"registryPullQPS": {RegistryPullQPS: ptr.To[int32](-1)}, "maxParallelImagePulls 0": {MaxParallelImagePulls: ptr.To[int32](0)},
		"serializeImagePulls":                    {MaxParallelImagePulls: ptr.To[int32](2), SerializeImagePulls: ptr.To(true)},
		"imagePullCredentialsVerificationPolicy": {ImagePullCredentialsVerificationPolicy: "Sometimes"},
		"maxPods (--max-pods) -1":                {MaxPods: -1}, "path": {StaticPodPath: "relative"}, "URL": {StaticPodURL: "ftp://x"},
	} {
		_, err := kubelet.NewMainKubelet(config, nil, true)
		require.ErrorContains(t, err, want)
	}
}

// TestReadOnlyServer sends requests without credentials: they may read, and change nothing.
func TestReadOnlyServer(t *testing.T) {
	k := newMain(t, &kubeletconfig.KubeletConfiguration{})
	require.NoError(t, os.MkdirAll(k.GetPodDir("u"), 0o700)) // the kubelet creates it when it starts
	port, err := freeport.Loopback()
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.ListenAndServeReadOnly(net.IPv4(127, 0, 0, 1), uint(port))
	}()
	base := "http://127.0.0.1:" + strconv.Itoa(port)
	require.Eventually(t, func() bool {
		resp, err := http.Get(base + "/healthz")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
	for path, want := range map[string]int{
		"/pods": 200, "/metrics": 200, "/metrics/resource": 200, "/stats/summary": 200, "/configz": 404,
		"/exec/ns/web/app": 404, "/run/ns/web/app": 404, "/containerLogs/ns/web/app": 404, "/logs/": 404,
	} {
		resp, err := http.Get(base + path)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, errors.Join(err, resp.Body.Close()))
		require.Equal(t, want, resp.StatusCode, "%s: %s", path, body)
	}
	resp, err := http.Post(base+"/pods", "application/json", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	http.DefaultClient.CloseIdleConnections()
	k.Close()
	<-done
}

func TestParseReservation(t *testing.T) {
	r, err := kubelet.ParseReservation(map[string]string{"cpu": "100m", "pid": "10"}, nil)
	require.NoError(t, err)
	require.Equal(t, "100m", r.Kubernetes.Cpu().String())
	require.NotNil(t, r.System)
	require.Empty(t, r.System)
	_, err = kubelet.ParseReservation(nil, map[string]string{"memory": "lots"})
	require.ErrorContains(t, err, "lots")
}

func TestReasonCache(t *testing.T) {
	c := kubelet.NewReasonCache()
	step := func(action container.SyncAction, err error) container.PodSyncResult {
		return container.PodSyncResult{SyncResults: []*container.SyncResult{
			{Action: action, Target: "c", Error: err, Message: "why"},
		}}
	}
	failure := errors.New("ErrImagePull")
	c.Update("u", step(container.KillContainer, failure))
	err, message, found := c.Get("u", "c")
	require.NoError(t, err)
	require.Empty(t, message)
	require.False(t, found, "only starts count")
	c.Update("u", step(container.StartContainer, failure))
	err, message, found = c.Get("u", "c")
	require.Equal(t, failure, err)
	require.Equal(t, "why", message)
	require.True(t, found)
	c.Update("u", step(container.StartContainer, nil))
	_, _, found = c.Get("u", "c")
	require.False(t, found)
	for i := range 1001 {
		c.Update("u", container.PodSyncResult{SyncResults: []*container.SyncResult{
			{Action: container.StartContainer, Target: strconv.Itoa(i), Error: failure},
		}})
	}
	_, _, found = c.Get("u", "0")
	require.False(t, found, "the oldest goes")
}

func TestGetPhase(t *testing.T) {
	spec := &corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, InitContainers: []corev1.Container{{Name: "i"}},
		Containers: []corev1.Container{{Name: "c"}},
	}
	ended := func(name string, code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code},
		}}
	}
	for _, c := range []struct {
		want corev1.PodPhase
		info []corev1.ContainerStatus
	}{
		{corev1.PodPending, nil},
		{corev1.PodPending, []corev1.ContainerStatus{ended("i", 0)}},
		{corev1.PodFailed, []corev1.ContainerStatus{ended("i", 1)}},
		{corev1.PodSucceeded, []corev1.ContainerStatus{ended("i", 0), ended("c", 0)}},
		{corev1.PodFailed, []corev1.ContainerStatus{ended("i", 0), ended("c", 1)}},
	} {
		require.Equal(t, c.want, kubelet.GetPhase(spec, c.info))
	}
}

func TestDiskSpacePolicy(t *testing.T) {
	_, err := kubelet.WithDiskSpacePolicy(kubelet.DiskSpacePolicy{RootFreeDiskMB: -1})
	require.ErrorContains(t, err, "RootFreeDiskMB")
	_, err = kubelet.WithDiskSpacePolicy(kubelet.DiskSpacePolicy{DockerFreeDiskMB: -1})
	require.ErrorContains(t, err, "DockerFreeDiskMB")
	option, err := kubelet.WithDiskSpacePolicy(kubelet.DiskSpacePolicy{RootFreeDiskMB: 1 << 40})
	require.NoError(t, err)
	k := newMain(t, &kubeletconfig.KubeletConfiguration{}, option)
	_, err = k.RootFsInfo()
	require.NoError(t, err, "also of a directory that does not exist yet")
}

func TestOOMLine(t *testing.T) {
	const head = "oom-kill:constraint="
	name, data, ok := cadvisor.ParseOOM(head + "CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom," +
		"task_memcg=/user.slice,task=stress,pid=42,uid=0")
	require.True(t, ok)
	require.Equal(t, "/", name)
	require.Equal(t, v1.OomKillEventData{Pid: 42, ProcessName: "stress"}, data)
	name, _, ok = cadvisor.ParseOOM(head + "CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0," +
		"oom_memcg=/kubepods/podx,task_memcg=/kubepods/podx/c,task=a,pid=1,uid=0")
	require.True(t, ok)
	require.Equal(t, "/kubepods/podx", name, "a container's own limit")
	_, _, ok = cadvisor.ParseOOM("something else")
	require.False(t, ok)
}

func TestRunOnceWantsAllPods(t *testing.T) {
	k := newMain(t, &kubeletconfig.KubeletConfiguration{})
	updates := make(chan kubelettypes.PodUpdate, 1)
	updates <- kubelettypes.PodUpdate{Op: kubelettypes.ADD}
	_, err := k.RunOnce(updates)
	require.ErrorContains(t, err, "want SET")
	close(updates)
	_, err = k.RunOnce(updates)
	require.ErrorContains(t, err, "without an update")
}

// TestRunOnceEndsWithItsContext has a source that delivers nothing.
func TestRunOnceEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := kubelet.RunKubelet(ctx, &kubeletconfig.KubeletConfiguration{PodLogsDir: filepath.Join(dir, "log")}, &kubelet.KubeletDeps{
		DockerClient: fake.New(clocktesting.NewFakePassiveClock(time.Now())), Recorder: record.NewFakeRecorder(10),
		PodConfig: podconfig.NewPodConfig(), Options: []kubelet.Option{kubelet.WithRootDir(filepath.Join(dir, "root"))},
	}, true, true)
	require.ErrorIs(t, err, context.Canceled)
}

// namedOS is a machine of another name.
type namedOS struct{ container.RealOS }

func (namedOS) Hostname() (string, error) { return "Other-Machine", nil }

// fullOS is a machine whose disk is full.
type fullOS struct{ container.RealOS }

func (fullOS) MkdirAll(string, os.FileMode) error { return syscall.ENOSPC }

func TestRunKubeletReturnsWhyItEnded(t *testing.T) {
	dir := t.TempDir()
	err := kubelet.RunKubelet(t.Context(), &kubeletconfig.KubeletConfiguration{
		PodLogsDir: filepath.Join(dir, "log"), EnableServer: new(bool),
		FailCgroupV1: new(bool), FailSwapOn: new(bool), MakeIPTablesUtilChains: new(bool),
	}, &kubelet.KubeletDeps{
		DockerClient: fake.New(clocktesting.NewFakePassiveClock(time.Now())), Recorder: record.NewFakeRecorder(10),
		OSInterface: fullOS{}, Options: []kubelet.Option{kubelet.WithRootDir(filepath.Join(dir, "root"))},
	}, true, false)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "run kubelet: create directory")
}

func TestInjectedMachine(t *testing.T) {
	dir := t.TempDir()
	var score int
	k, err := kubelet.NewMainKubelet(&kubeletconfig.KubeletConfiguration{PodLogsDir: filepath.Join(dir, "log")}, &kubelet.KubeletDeps{
		DockerClient: fake.New(clocktesting.NewFakePassiveClock(time.Now())), Recorder: record.NewFakeRecorder(10),
		OSInterface: namedOS{}, Options: []kubelet.Option{kubelet.WithRootDir(filepath.Join(dir, "root"))},
		OOMAdjuster: &oom.OOMAdjuster{ApplyOOMScoreAdj: func(_, adj int) error { score = adj; return nil }},
	}, true)
	require.NoError(t, err)
	require.Equal(t, "other-machine", k.GetHostname())
	require.Zero(t, score, "nothing is done before it runs")
}
