package securitycontext

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

func podOf(podContext *corev1.PodSecurityContext, containerContext *corev1.SecurityContext) (*corev1.Pod, *corev1.Container) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"},
		Spec:       corev1.PodSpec{SecurityContext: podContext, Containers: []corev1.Container{{Name: "c", SecurityContext: containerContext}}},
	}
	return pod, &pod.Spec.Containers[0]
}

func TestUserOf(t *testing.T) {
	require.Equal(t, ImageUser{UID: ptr.To[int64](5)}, ImageUserOf(&runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 5}}))
	require.Equal(t, ImageUser{Name: "web"}, ImageUserOf(&runtimeapi.Image{Username: "web"}))
	require.Equal(t, ImageUser{UID: new(int64)}, ImageUserOf(&runtimeapi.Image{}), "no user is root")
}

func TestVerifyNonRoot(t *testing.T) {
	yes, no := ptr.To(true), ptr.To(false)
	root, unprivileged, named := ImageUser{UID: new(int64)}, ImageUser{UID: ptr.To[int64](65534)}, ImageUser{Name: "web"}
	for name, c := range map[string]struct {
		general *corev1.PodSecurityContext
		own     *corev1.SecurityContext
		image   ImageUser
		fault   string
	}{
		"not asked for":      {nil, nil, root, ""},
		"image is root":      {nil, &corev1.SecurityContext{RunAsNonRoot: yes}, root, "image will run as root (pod: \"p_ns(u)\", container: c)"},
		"image is not":       {nil, &corev1.SecurityContext{RunAsNonRoot: yes}, unprivileged, ""},
		"image has a name":   {nil, &corev1.SecurityContext{RunAsNonRoot: yes}, named, "non-numeric user (web)"},
		"the spec's user":    {nil, &corev1.SecurityContext{RunAsNonRoot: yes, RunAsUser: ptr.To[int64](1)}, named, ""},
		"the spec's is root": {nil, &corev1.SecurityContext{RunAsNonRoot: yes, RunAsUser: new(int64)}, unprivileged, "runAsUser breaks non-root policy"},
		"the Pod asks":       {&corev1.PodSecurityContext{RunAsNonRoot: yes}, nil, root, "image will run as root"},
		"the container wins": {&corev1.PodSecurityContext{RunAsNonRoot: yes}, &corev1.SecurityContext{RunAsNonRoot: no}, root, ""},
		"the Pod's user":     {&corev1.PodSecurityContext{RunAsNonRoot: yes, RunAsUser: ptr.To[int64](1)}, nil, root, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod, container := podOf(c.general, c.own)
			err := VerifyNonRoot(pod, container, c.image)
			if c.fault == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.fault)
		})
	}
}

func TestContainer(t *testing.T) {
	pod, container := podOf(&corev1.PodSecurityContext{
		RunAsUser: ptr.To[int64](1), RunAsGroup: ptr.To[int64](2), FSGroup: ptr.To[int64](3), SupplementalGroups: []int64{4},
		SELinuxOptions:  &corev1.SELinuxOptions{Level: "s0"},
		AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault},
	}, &corev1.SecurityContext{
		RunAsUser: ptr.To[int64](10), Privileged: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true),
		AllowPrivilegeEscalation: ptr.To(false),
		Capabilities:             &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("a/b.json")},
	})
	namespaces := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	got, err := Container(pod, container, Inputs{Namespaces: namespaces, ExtraGroups: []int64{9}, SeccompRoot: "/seccomp"})
	require.NoError(t, err)
	require.NotEmpty(t, got.MaskedPaths)
	require.Contains(t, got.ReadonlyPaths, "/proc/sys")
	got.MaskedPaths, got.ReadonlyPaths = nil, nil
	want := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces,
		RunAsUser:        &runtimeapi.Int64Value{Value: 10}, RunAsGroup: &runtimeapi.Int64Value{Value: 2},
		SupplementalGroups: []int64{3, 4, 9},
		SelinuxOptions:     &runtimeapi.SELinuxOption{Level: "s0"},
		Privileged:         true, ReadonlyRootfs: true, NoNewPrivs: true,
		Capabilities:    &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}},
		Seccomp:         &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/seccomp/a/b.json"},
		Apparmor:        &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		ApparmorProfile: "runtime/default",
	}
	require.Equal(t, want.String(), got.String())
}

func TestContainerDefaults(t *testing.T) {
	pod, container := podOf(nil, nil)
	got, err := Container(pod, container, Inputs{Image: ImageUser{Name: "web"}})
	require.NoError(t, err)
	require.Nil(t, got.RunAsUser)
	require.Equal(t, "web", got.RunAsUsername)
	require.Equal(t, runtimeapi.SecurityProfile_Unconfined, got.Seccomp.ProfileType)
	require.Nil(t, got.Apparmor)
	require.False(t, got.NoNewPrivs)

	got, err = Container(pod, container, Inputs{SeccompDefault: true, Image: ImageUser{UID: ptr.To[int64](7)}})
	require.NoError(t, err)
	require.Equal(t, runtimeapi.SecurityProfile_RuntimeDefault, got.Seccomp.ProfileType)
	require.Equal(t, int64(7), got.RunAsUser.Value)

	container.SecurityContext = &corev1.SecurityContext{ProcMount: ptr.To(corev1.UnmaskedProcMount)}
	got, err = Container(pod, container, Inputs{})
	require.NoError(t, err)
	require.Empty(t, got.MaskedPaths)
	require.Empty(t, got.ReadonlyPaths)
}

func TestContainerRefuses(t *testing.T) {
	for fault, containerContext := range map[string]*corev1.SecurityContext{
		"seccompProfile: localhostProfile": {SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("../x")}},
		"seccompProfile.type":              {SeccompProfile: &corev1.SeccompProfile{Type: "Odd"}},
		"appArmorProfile: localhost":       {AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost}},
		"appArmorProfile.type":             {AppArmorProfile: &corev1.AppArmorProfile{Type: "Odd"}},
	} {
		pod, container := podOf(nil, containerContext)
		_, err := Container(pod, container, Inputs{})
		require.ErrorContains(t, err, fault)
	}
}

func TestSandbox(t *testing.T) {
	pod, container := podOf(&corev1.PodSecurityContext{RunAsGroup: ptr.To[int64](2)}, &corev1.SecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}})
	got, err := Sandbox(pod, Inputs{})
	require.NoError(t, err)
	require.Equal(t, int64(0), got.RunAsUser.Value, "a group needs a user")
	require.Equal(t, int64(2), got.RunAsGroup.Value)
	require.Equal(t, runtimeapi.SecurityProfile_RuntimeDefault, got.Seccomp.ProfileType, "whatever the containers are allowed")
	require.False(t, got.Privileged)
	container.SecurityContext.Privileged = ptr.To(true)
	got, err = Sandbox(pod, Inputs{})
	require.NoError(t, err)
	require.True(t, got.Privileged)
}
