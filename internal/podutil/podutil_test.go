package podutil_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
)

func spec() *corev1.PodSpec {
	return &corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Name: "setup"},
			{Name: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
		},
		Containers: []corev1.Container{{Name: "web"}},
		EphemeralContainers: []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "shell"}},
		},
	}
}

func TestContainersYieldsEveryListInOrder(t *testing.T) {
	s := spec()
	var names []string
	var kinds []podutil.Kind
	for container, kind := range podutil.Containers(s) {
		names, kinds = append(names, container.Name), append(kinds, kind)
		container.Image = "image of " + container.Name
	}
	require.Equal(t, []string{"setup", "proxy", "web", "debug"}, names)
	require.Equal(t, []podutil.Kind{podutil.Init, podutil.Init, podutil.Regular, podutil.Ephemeral}, kinds)
	require.Equal(t, "image of debug", s.EphemeralContainers[0].Image, "the pointers are into the spec")
	for container := range podutil.Containers(s) {
		require.Equal(t, "setup", container.Name)
		break
	}
}

func TestFindContainerAndSidecars(t *testing.T) {
	container, kind := podutil.FindContainer(spec(), "debug")
	require.Equal(t, "shell", container.Image)
	require.Equal(t, podutil.Ephemeral, kind)
	container, _ = podutil.FindContainer(spec(), "absent")
	require.Nil(t, container)

	require.True(t, podutil.HasSidecar(spec(), "proxy"))
	require.False(t, podutil.HasSidecar(spec(), "setup"))
	require.False(t, podutil.HasSidecar(spec(), "web"))
	require.False(t, podutil.HasSidecar(spec(), "absent"))
	always := &corev1.Container{RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}
	require.False(t, podutil.IsSidecar(always, podutil.Regular), "a regular container may say Always and is none")
}

func TestStatusAndConditions(t *testing.T) {
	status := &corev1.PodStatus{
		Phase:             corev1.PodRunning,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "web"}},
	}
	require.True(t, podutil.IsReady(status))
	status.Conditions[0].Status = corev1.ConditionUnknown
	require.False(t, podutil.IsReady(status))
	require.False(t, podutil.IsReady(&corev1.PodStatus{}))
	require.Same(t, &status.ContainerStatuses[0], podutil.FindStatus(status.ContainerStatuses, "web"))
	require.Nil(t, podutil.FindStatus(status.ContainerStatuses, "absent"))

	require.False(t, podutil.IsTerminal(status))
	status.Phase = corev1.PodFailed
	require.True(t, podutil.IsTerminal(status))
	status.Phase = corev1.PodSucceeded
	require.True(t, podutil.IsTerminal(status))
}

func TestStaticAndMirrorPods(t *testing.T) {
	pod := func(annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
	}
	file := pod(map[string]string{podutil.SourceAnnotation: "file"})
	own := pod(map[string]string{podutil.SourceAnnotation: "mine"})
	api := pod(map[string]string{podutil.SourceAnnotation: podutil.SourceAPI})
	mirror := pod(map[string]string{corev1.MirrorPodAnnotationKey: "hash"})
	for _, c := range []struct {
		pod            *corev1.Pod
		static, mirror bool
	}{{file, true, false}, {own, true, false}, {api, false, false}, {pod(nil), false, false}, {mirror, false, true}} {
		require.Equal(t, c.static, podutil.IsStatic(c.pod), "%v", c.pod.Annotations)
		require.Equal(t, c.mirror, podutil.IsMirror(c.pod), "%v", c.pod.Annotations)
	}
}

func TestStatusesAreThoseOfAllKinds(t *testing.T) {
	named := func(names ...string) (list []corev1.ContainerStatus) {
		for _, name := range names {
			list = append(list, corev1.ContainerStatus{Name: name})
		}
		return list
	}
	status := &corev1.PodStatus{
		InitContainerStatuses: named("first", "sidecar"), ContainerStatuses: named("main"), EphemeralContainerStatuses: named("debugger"),
	}
	kinds := map[string]podutil.Kind{}
	var order []string
	for s, kind := range podutil.Statuses(status) {
		kinds[s.Name] = kind
		order = append(order, s.Name)
		s.Ready = true
	}
	require.Equal(t, []string{"first", "sidecar", "main", "debugger"}, order)
	require.Equal(t, map[string]podutil.Kind{
		"first": podutil.Init, "sidecar": podutil.Init, "main": podutil.Regular, "debugger": podutil.Ephemeral,
	}, kinds)
	for range podutil.Statuses(status) {
		break // a caller may stop early
	}
	require.True(t, podutil.FindStatusOfAny(status, "debugger").Ready, "the pointers are into the status")
	require.Nil(t, podutil.FindStatusOfAny(status, "absent"))
}
