package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// newRunning returns a standalone Kubelet on a fake runtime, with a cgroup of its own.
func newRunning(t *testing.T) (*Kubelet, *fake.Runtime) {
	t.Helper()
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v1")
	}
	dir, runtime := t.TempDir(), fake.New(clock.RealClock{})
	k, err := NewMainKubelet(&kubeletconfig.KubeletConfiguration{
		PodLogsDir: filepath.Join(dir, "log"), CgroupRoot: fmt.Sprintf("/berth-%d-%s", os.Getpid(), t.Name()),
		EnforceNodeAllocatable: []string{"none"}, FailCgroupV1: new(bool), FailSwapOn: new(bool), MakeIPTablesUtilChains: new(bool),
	}, &KubeletDeps{
		DockerClient: runtime, Recorder: record.NewFakeRecorder(100),
		Options: []Option{
			WithRootDir(filepath.Join(dir, "root")), WithContainerLogsDir(filepath.Join(dir, "containers")), WithNode("n", net.IPv4(10, 0, 0, 1)), WithLogger(testlog.New(t, slog.DiscardHandler)),
		},
	}, true)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, k.agent.Cleanup(context.Background()))
		require.NoError(t, k.Close())
	})
	return k, runtime
}

func update(op kubelettypes.PodOperation, names ...string) kubelettypes.PodUpdate {
	u := kubelettypes.PodUpdate{Op: op, Source: kubelettypes.FileSource}
	for _, name := range names {
		u.Pods = append(u.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "u-1"},
			Spec: corev1.PodSpec{DNSPolicy: corev1.DNSDefault, Containers: []corev1.Container{
				{Name: name, Image: "app:1", ImagePullPolicy: corev1.PullAlways},
			}},
		})
	}
	return u
}

// TestRunDrivesTheAgent runs a Pod of the channel until the source has it no more, and ends with the channel.
func TestRunDrivesTheAgent(t *testing.T) {
	k, runtime := newRunning(t)
	updates, ended := make(chan kubelettypes.PodUpdate), make(chan struct{})
	go func() {
		defer close(ended)
		k.Run(updates)
	}()
	updates <- update(kubelettypes.SET, "app")
	require.Eventually(t, func() bool { return runtime.Running()["app"] == 1 }, time.Minute, time.Millisecond)
	pod, found := k.GetPodByName("ns", "app")
	require.True(t, found)
	require.Equal(t, kubelettypes.FileSource, pod.Annotations["kubernetes.io/config.source"])
	updates <- update(kubelettypes.SET)
	require.Eventually(t, func() bool { return len(runtime.Running()) == 0 }, time.Minute, time.Millisecond)
	close(updates)
	<-ended
}

func TestRunOnceReturnsWhenPodsRun(t *testing.T) {
	k, runtime := newRunning(t)
	updates := make(chan kubelettypes.PodUpdate, 1)
	updates <- update(kubelettypes.SET, "app")
	results, err := k.RunOnce(updates)
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.NoError(t, results[0].Err)
	require.Equal(t, 1, runtime.Running()["app"], "containers run on")
}
