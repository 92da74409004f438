package container

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFromCRI(t *testing.T) {
	labels := map[string]string{PodNameLabel: "p", PodNamespaceLabel: "ns", PodUIDLabel: "u", ContainerNameLabel: "c"}
	second := func(n int64) int64 { return n * int64(time.Second) }
	sandboxes := []*runtimeapi.PodSandboxStatus{
		{Id: "old", CreatedAt: second(1), State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY, Labels: labels},
		nil,
		{Id: "new", CreatedAt: second(2), Network: &runtimeapi.PodSandboxNetworkStatus{
			Ip: "10.0.0.1", AdditionalIps: []*runtimeapi.PodIP{{Ip: "nonsense"}, {Ip: "fd00::1"}}}},
	}
	containers := []*runtimeapi.ContainerStatus{
		{Id: "a", Labels: labels, CreatedAt: second(3), StartedAt: second(4), FinishedAt: second(5), ExitCode: 3,
			State: runtimeapi.ContainerState_CONTAINER_EXITED, Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Annotations: map[string]string{HashAnnotation: "not hex", PreStopAnnotation: "{", RestartCountAnnotation: "x"}},
		{Id: "b", Labels: labels, CreatedAt: second(6), State: runtimeapi.ContainerState_CONTAINER_RUNNING,
			Metadata:    &runtimeapi.ContainerMetadata{Name: "c", Attempt: 1},
			Annotations: map[string]string{HashAnnotation: "ff", RestartCountAnnotation: "2"},
			Image:       &runtimeapi.ImageSpec{Image: "img:1", UserSpecifiedImage: "img"}},
		{Id: "d", CreatedAt: second(6), State: 77, Metadata: &runtimeapi.ContainerMetadata{Name: "d"},
			Image: &runtimeapi.ImageSpec{UserSpecifiedImage: "img"}},
	}
	s := FromCRI("u", sandboxes, containers)
	require.Equal(t, "p", s.Name)
	require.Equal(t, "ns", s.Namespace)
	require.Equal(t, []string{"10.0.0.1", "fd00::1"}, s.IPs)
	require.Equal(t, "new", s.LatestSandbox().Id)
	require.Len(t, s.ReadySandboxes(), 1)

	newest := s.Find("c")
	require.Equal(t, "b", newest.ID)
	require.Equal(t, StateRunning, newest.State)
	require.Equal(t, uint32(2), newest.Attempt)
	require.Equal(t, uint64(255), newest.SpecHash)
	require.True(t, newest.StartedAt.IsZero())
	require.Equal(t, "img:1", newest.Image)

	old := s.FindExited("c")
	require.Equal(t, "a", old.ID)
	require.Equal(t, time.Unix(5, 0), old.FinishedAt)
	require.Equal(t, int32(3), old.ExitCode)
	require.Zero(t, old.SpecHash)
	require.Nil(t, old.PreStop, "invalid JSON is ignored")
	require.Same(t, old, s.FindID("a"))

	require.Equal(t, StateUnknown, s.Find("d").State)
	require.Equal(t, "img", s.Find("d").Image)
	require.Len(t, s.Running(), 2, "what may run counts as running")
	require.Len(t, s.All("c"), 2)
	require.Nil(t, s.Find("z"))
	require.False(t, s.Empty())
}

func TestNilPodStatus(t *testing.T) {
	var s *PodStatus
	require.Nil(t, s.Find("c"))
	require.Nil(t, s.FindID("c"))
	require.Nil(t, s.FindExited("c"))
	require.Nil(t, s.LatestSandbox())
	require.Empty(t, s.Running())
	require.Empty(t, s.All("c"))
	require.Empty(t, s.ReadySandboxes())
	require.True(t, s.Empty())
}

func TestConfigError(t *testing.T) {
	require.NoError(t, NewConfigError(nil))
	cause := errors.New("missing")
	err := NewConfigError(cause)
	require.EqualError(t, err, "missing")
	require.ErrorIs(t, err, cause)
	wrapped := fmt.Errorf("again: %w", err)
	require.Equal(t, wrapped, NewConfigError(wrapped), "once is enough")
}

func TestStartCutOff(t *testing.T) {
	const exited = runtimeapi.ContainerState_CONTAINER_EXITED
	for name, c := range map[string]struct {
		status *runtimeapi.ContainerStatus
		want   State
	}{
		"ran and was killed": {
			&runtimeapi.ContainerStatus{State: exited, StartedAt: 1, FinishedAt: 2, ExitCode: 137}, StateExited},
		"killed before it ran": {
			&runtimeapi.ContainerStatus{State: exited, FinishedAt: 2, ExitCode: 137, Reason: "Error"}, StateCreated},
		"lost before it ran": {&runtimeapi.ContainerStatus{
			State: exited, CreatedAt: 1, FinishedAt: 2, ExitCode: 255, Reason: "Unknown"}, StateCreated},
		"gave up before it ran": {&runtimeapi.ContainerStatus{
			State: exited, CreatedAt: 1, FinishedAt: 2, ExitCode: 255, Reason: "Error"}, StateCreated},
		"ran and ended so": {&runtimeapi.ContainerStatus{
			State: exited, CreatedAt: 1, StartedAt: 2, FinishedAt: 3, ExitCode: 255, Reason: "Error"}, StateExited},
		"ended by another code before it was noted that it ran": {&runtimeapi.ContainerStatus{
			State: exited, CreatedAt: 1, FinishedAt: 2, ExitCode: 1, Reason: "Error"}, StateExited},
		"lost with all that was known of it": {
			&runtimeapi.ContainerStatus{State: exited, FinishedAt: 2, ExitCode: 255, Reason: "Unknown"}, StateExited},
		"unknown before it ran": {&runtimeapi.ContainerStatus{
			State: runtimeapi.ContainerState_CONTAINER_UNKNOWN, CreatedAt: 1}, StateCreated},
		"unknown while it runs": {&runtimeapi.ContainerStatus{
			State: runtimeapi.ContainerState_CONTAINER_UNKNOWN, CreatedAt: 1, StartedAt: 2}, StateUnknown},
		"start cancelled": {&runtimeapi.ContainerStatus{State: exited, FinishedAt: 2, ExitCode: 128, Reason: "StartError",
			Message: "failed to create containerd task: context canceled"}, StateCreated},
		"no such program": {&runtimeapi.ContainerStatus{State: exited, FinishedAt: 2, ExitCode: 128, Reason: "StartError",
			Message: `exec: "x": executable file not found in $PATH`}, StateExited},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, ContainerFromCRI(c.status).State) })
	}
}

func TestSandboxesAreKeptWithoutAnnotations(t *testing.T) {
	box := &runtimeapi.PodSandboxStatus{
		Id: "box", Metadata: &runtimeapi.PodSandboxMetadata{Name: "p"}, State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY, CreatedAt: 7,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"}, Linux: &runtimeapi.LinuxPodSandboxStatus{}, Labels: map[string]string{"a": "b"},
		RuntimeHandler: "runc", Annotations: map[string]string{"note": "long"},
	}
	got := FromCRI("uid", []*runtimeapi.PodSandboxStatus{box}, nil).Sandboxes[0]
	require.Empty(t, got.Annotations)
	require.Equal(t, "long", box.Annotations["note"], "the runtime's answer is unchanged")
	box.Annotations = nil
	require.True(t, proto.Equal(box, got), "%v", got)
}

// A runtime has any addresses of a Pod; the API takes one of each family, the node's own family first.
func TestOnePerFamily(t *testing.T) {
	both := []string{"10.0.0.2", "fd00::2", "10.1.0.2", "fd01:0::2"}
	for near, want := range map[string][]string{
		"192.0.2.1": {"10.0.0.2", "fd00::2"}, "2001:db8::1": {"fd00::2", "10.0.0.2"}, "": {"10.0.0.2", "fd00::2"},
	} {
		require.Equal(t, want, OnePerFamily(both, near), near)
	}
	require.Equal(t, []string{"10.0.0.2"}, OnePerFamily(both[:1], "2001:db8::1"))
	require.Equal(t, []string{"fd01::2", "10.0.0.2"}, OnePerFamily([]string{"?", "::ffff:10.0.0.2", "fd01:0::2"}, "::1"))
	require.Empty(t, OnePerFamily(nil, "192.0.2.1"))
}
