package podrun_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/podrun"
	"github.com/berth-dev/berth/kubelet/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a fake kubelet: it sends the given statuses when the Pod is set, and that it is removed when it is unset.
type node struct {
	statuses []corev1.PodStatus
	startErr error
	// logErr ends the logs.
	logErr error
	// after is called when all statuses were reported.
	after func()

	mu sync.Mutex
	fn func(status.Event)
}

func (n *node) Start(ctx context.Context) error {
	if n.startErr != nil {
		return n.startErr
	}
	<-ctx.Done()
	return nil
}

func (n *node) SetStatic(pods []*corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(pods) == 0 {
		n.fn(status.Event{UID: "u", Removed: true})
		return
	}
	for _, s := range n.statuses {
		n.fn(status.Event{UID: "someone else", Removed: true})
		n.fn(status.Event{UID: "u", Status: s})
	}
	if n.after != nil {
		n.after()
	}
}

func (n *node) Subscribe(fn func(status.Event)) func() { n.fn = fn; return func() {} }

func (n *node) FollowLog(_ context.Context, _ types.UID, id string, stdout, _ io.Writer) error {
	_, err := fmt.Fprintf(stdout, "line of %s\nrest", id)
	return errors.Join(err, n.logErr)
}

func podOf(names ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
	for _, name := range names {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
	}
	return pod
}

func ended(name string, code int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, ContainerID: "x://" + name, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code},
	}}
}

func running(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, ContainerID: "x://" + name, State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{},
	}}
}

func run(t *testing.T, ctx context.Context, n *node, config podrun.Config) (podrun.Result, string, error) {
	t.Helper()
	var out bytes.Buffer
	result, err := podrun.Run(ctx, config, podrun.Deps{
		Node: n, Out: podrun.LineWriter(&out), Err: io.Discard, Printf: func(string, ...any) {},
	})
	return result, out.String(), err
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		name   string
		status corev1.PodStatus
		want   int
	}{
		{"all well", corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{ended("a", 0)}}, 0},
		{"the first that failed", corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{
			ended("c", 5), ended("b", 4), ended("a", 0),
		}}, 4},
		{"an init container", corev1.PodStatus{
			Phase: corev1.PodFailed, InitContainerStatuses: []corev1.ContainerStatus{ended("i", 9)},
		}, 9},
		{"rejected", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := podOf("a", "b", "c")
			pod.Spec.InitContainers = []corev1.Container{{Name: "i"}}
			result, _, err := run(t, t.Context(), &node{statuses: []corev1.PodStatus{c.status}}, podrun.Config{Pod: pod})
			require.NoError(t, err)
			require.Equal(t, c.want, result.ExitCode)
			require.False(t, result.Interrupted)
		})
	}
}

func TestLogsOfEachInstanceOnce(t *testing.T) {
	statuses := []corev1.PodStatus{
		{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running("a"), running("b")}},
		{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{ended("a", 0), ended("b", 0)}},
	}
	_, out, err := run(t, t.Context(), &node{statuses: statuses}, podrun.Config{Pod: podOf("a", "b")})
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.ElementsMatch(t, []string{"a | line of x://a", "a | rest", "b | line of x://b", "b | rest"}, lines)

	_, out, err = run(t, t.Context(), &node{statuses: []corev1.PodStatus{
		{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{ended("a", 0)}},
	}}, podrun.Config{Pod: podOf("a")})
	require.NoError(t, err)
	require.Equal(t, "line of x://a\nrest", out, "one container: as it wrote it")
}

func TestLogsThatCannotBeRead(t *testing.T) {
	n := &node{logErr: errors.New("input/output error"), statuses: []corev1.PodStatus{
		{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{ended("a", 0)}},
	}}
	result, out, err := run(t, t.Context(), n, podrun.Config{Pod: podOf("a")})
	require.NoError(t, err)
	require.ErrorContains(t, result.Output, "log of container a: input/output error")
	require.Contains(t, out, "line of x://a")
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := &node{after: cancel, statuses: []corev1.PodStatus{
		{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running("a")}},
	}}
	result, _, err := run(t, ctx, n, podrun.Config{Pod: podOf("a")})
	require.NoError(t, err)
	require.True(t, result.Interrupted)
}

func TestDetached(t *testing.T) {
	n := &node{statuses: []corev1.PodStatus{
		{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running("a")}},
	}}
	result, out, err := run(t, t.Context(), n, podrun.Config{Pod: podOf("a"), Detach: true})
	require.NoError(t, err)
	require.Empty(t, out)
	require.Equal(t, corev1.PodRunning, result.Status.Phase)
	_, _, err = run(t, t.Context(), &node{}, podrun.Config{Pod: podOf("a"), Remove: true})
	require.NoError(t, err)
}

func TestKubeletThatEnds(t *testing.T) {
	broken := errors.New("no runtime")
	_, _, err := run(t, t.Context(), &node{startErr: broken}, podrun.Config{Pod: podOf("a")})
	require.ErrorIs(t, err, broken)
	_, err = podrun.Run(t.Context(), podrun.Config{}, podrun.Deps{})
	require.ErrorContains(t, err, "Config.Pod")
}

func TestExplain(t *testing.T) {
	require.Empty(t, podrun.Explain(&corev1.PodStatus{Phase: corev1.PodSucceeded, Reason: "x"}))
	require.Equal(t, "a: b", podrun.Explain(&corev1.PodStatus{Phase: corev1.PodFailed, Reason: "a", Message: "b"}))
}
