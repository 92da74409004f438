package kubelet

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/node"
)

func TestContainerGCFailureIsAnEvent(t *testing.T) {
	fakeClock, events, dir := clocktesting.NewFakeClock(time.Now()), newObjectRecorder(), t.TempDir()
	runtime := fake.New(fakeClock)
	k, err := NewMainKubelet(&kubeletconfig.KubeletConfiguration{PodLogsDir: filepath.Join(dir, "log")}, &KubeletDeps{
		DockerClient: runtime, Recorder: events, Options: []Option{
			WithRootDir(filepath.Join(dir, "root")), WithNode("n", net.IPv4(10, 0, 0, 1)),
			func(k *Kubelet) { k.deps.Clock, k.deps.Logger = fakeClock, testlog.New(t, slog.DiscardHandler) },
		},
	}, true)
	require.NoError(t, err)
	k.StartGarbageCollection()
	defer func() { require.NoError(t, k.Close()) }()
	runtime.FailNext("ListPodSandbox", errors.New("no answer"))
	require.Eventually(t, fakeClock.HasWaiters, time.Minute, time.Millisecond)
	var event string
	require.Eventually(t, func() bool {
		fakeClock.Step(ContainerGCPeriod)
		select {
		case event = <-events.Events:
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond)
	require.Equal(t, "Warning ContainerGCFailed list sandboxes: no answer", event)
	require.Equal(t, node.Reference("n"), events.objects[0])
}
