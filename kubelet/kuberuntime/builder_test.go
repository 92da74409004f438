package kuberuntime

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/envvars"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/securitycontext"
)

func testBuilder() *Builder {
	return NewBuilder(Config{
		PodLogsDir:        "/logs",
		SeccompRoot:       "/seccomp",
		DNS:               network.DNS{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local"},
		RecursiveReadOnly: true,
	})
}

// TestHashContainer holds the hash to the value that upstream's own test fixes: a changed one would restart every
// container of a node on which one kubelet takes over from the other.
func TestHashContainer(t *testing.T) {
	require.Equal(t, uint64(0x8e45cbd0), HashContainer(&corev1.Container{
		Name: "test_container", Image: "foo/image:v1", Args: []string{"anything"},
	}))
}

func TestSandboxConfig(t *testing.T) {
	pod := podOf("Always", "side:s", "a")
	pod.Labels, pod.Annotations = map[string]string{"app": "x"}, map[string]string{"note": "y"}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{
		{ContainerPort: 80, HostPort: 8080, HostIP: "127.0.0.1", Protocol: corev1.ProtocolTCP}, {ContainerPort: 81},
	}
	pod.Spec.InitContainers[0].Ports = []corev1.ContainerPort{{ContainerPort: 53, HostPort: 53, Protocol: corev1.ProtocolUDP}}
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	pod.Spec.ShareProcessNamespace = ptr.To(true)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: ptr.To[int64](7), FSGroup: ptr.To[int64](3), SupplementalGroups: []int64{4},
		SupplementalGroupsPolicy: ptr.To(corev1.SupplementalGroupsPolicyStrict),
		Sysctls:                  []corev1.Sysctl{{Name: "net/ipv4/conf/eth0.1/forwarding", Value: "1"}, {Name: "kernel.shm_rmid_forced", Value: "1"}},
	}
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("1Mi")}

	got, warnings, err := testBuilder().SandboxConfig(pod, 2, SandboxOptions{CgroupParent: "/k/p", ExtraGroups: []int64{9}})
	require.NoError(t, err)
	require.Empty(t, warnings)
	want := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u1", Attempt: 2},
		Hostname:     "p",
		LogDirectory: "/logs/ns_p_u1",
		DnsConfig: &runtimeapi.DNSConfig{
			Servers:  []string{"10.96.0.10"},
			Searches: []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local"},
			Options:  []string{"ndots:5"},
		},
		PortMappings: []*runtimeapi.PortMapping{
			{ContainerPort: 53, HostPort: 53, Protocol: runtimeapi.Protocol_UDP},
			{ContainerPort: 80, HostPort: 8080, HostIp: "127.0.0.1"},
		},
		Labels: map[string]string{
			"app": "x", "io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "u1",
		},
		Annotations: map[string]string{"note": "y"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/k/p",
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions:         &runtimeapi.NamespaceOption{},
				RunAsUser:                &runtimeapi.Int64Value{Value: 7},
				SupplementalGroups:       []int64{3, 4, 9},
				SupplementalGroupsPolicy: runtimeapi.SupplementalGroupsPolicy_Strict,
				Privileged:               true,
				Seccomp:                  &runtimeapi.SecurityProfile{},
			},
			Sysctls:   map[string]string{"net.ipv4.conf.eth0/1.forwarding": "1", "kernel.shm_rmid_forced": "1"},
			Resources: &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000},
			Overhead:  &runtimeapi.LinuxContainerResources{CpuShares: 256, CpuPeriod: 100000, CpuQuota: 25000, MemoryLimitInBytes: 1 << 20},
		},
	}
	require.Equal(t, want.String(), got.String())
	require.Equal(t, map[string]string{"app": "x"}, pod.Labels, "the pod is left as it was")
}

func TestSandboxConfigRefuses(t *testing.T) {
	for field, change := range map[string]func(*corev1.PodSpec){
		"hostUsers": func(s *corev1.PodSpec) { s.HostUsers = ptr.To(false) },
		"hostname":  func(s *corev1.PodSpec) { s.Hostname = "not a name" },
		"dnsPolicy": func(s *corev1.PodSpec) { s.DNSPolicy = "Sometimes" },
		"supplementalGroupsPolicy": func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(corev1.SupplementalGroupsPolicy("No"))}
		},
		"setHostnameAsFQDN": func(s *corev1.PodSpec) {
			s.Subdomain, s.SetHostnameAsFQDN = "a-subdomain-that-is-far-too-long-for-any-kernel", ptr.To(true)
		},
	} {
		t.Run(field, func(t *testing.T) {
			pod := podOf("Always", "a")
			change(&pod.Spec)
			_, _, err := testBuilder().SandboxConfig(pod, 0, SandboxOptions{})
			require.ErrorContains(t, err, field)
			var config *container.ConfigError
			require.ErrorAs(t, err, &config)
		})
	}
}

func TestContainerConfig(t *testing.T) {
	pod := podOf("Always", "a")
	pod.DeletionGracePeriodSeconds, pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5), ptr.To[int64](30)
	c := &pod.Spec.Containers[0]
	c.Command, c.Args = []string{"$(BIN)"}, []string{"$$(BIN)", "$(NOT)"}
	c.TerminationMessagePath, c.TerminationMessagePolicy = "/dev/termination-log", corev1.TerminationMessageReadFile
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
	c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}
	c.Stdin, c.TTY, c.WorkingDir = true, true, "/w"
	start := ComputeActions(pod, statusOf(exited("a", 0, 20)), Inputs{Now: at(99)}).Start[0]

	got, err := testBuilder().ContainerConfig(ContainerInputs{
		Pod: pod, Start: start, ImageRef: "sha256:abc", ImageUser: securitycontext.ImageUser{UID: ptr.To[int64](1000)},
		Env: []envvars.Var{{Name: "BIN", Value: "/bin/true"}}, Annotations: map[string]string{"device": "d"},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/true"}, got.Command)
	require.Equal(t, []string{"$(BIN)", "$(NOT)"}, got.Args)
	require.Equal(t, "a/1.log", got.LogPath)
	require.Equal(t, uint32(1), got.Metadata.Attempt)
	require.Equal(t, "sha256:abc", got.Image.Image)
	require.Equal(t, "image/a", got.Image.UserSpecifiedImage)
	require.True(t, got.Stdin && got.Tty && !got.StdinOnce)
	require.Equal(t, "/w", got.WorkingDir)
	require.Equal(t, int64(1000), got.Linux.SecurityContext.RunAsUser.Value)
	require.Equal(t, runtimeapi.NamespaceMode_CONTAINER, got.Linux.SecurityContext.NamespaceOptions.Pid)
	require.Empty(t, cmp.Diff(map[string]string{
		"device":                                           "d",
		"io.kubernetes.container.hash":                     strconv.FormatUint(HashContainer(c), 16),
		"io.kubernetes.container.restartCount":             "1",
		"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
		"io.kubernetes.container.terminationMessagePolicy": "File",
		"io.kubernetes.pod.deletionGracePeriod":            "5",
		"io.kubernetes.pod.terminationGracePeriod":         "30",
		"io.kubernetes.container.preStopHandler":           `{"sleep":{"seconds":1}}`,
		"io.kubernetes.container.ports":                    `[{"name":"web","containerPort":80}]`,
	}, got.Annotations))

	// What one kubelet writes down another one reads back, with the Pod object gone.
	back := container.ContainerFromCRI(&runtimeapi.ContainerStatus{
		Id: "id", Metadata: got.Metadata, Labels: got.Labels, Annotations: got.Annotations,
		State: runtimeapi.ContainerState_CONTAINER_RUNNING,
	})
	require.Equal(t, "a", back.Name)
	require.Equal(t, HashContainer(c), back.SpecHash)
	require.Equal(t, uint32(1), back.Attempt)
	require.Equal(t, c.Lifecycle.PreStop, back.PreStop)
	require.Equal(t, c.Ports, back.Ports)
	require.Equal(t, int64(30), *back.PodGracePeriod)
	require.Equal(t, int64(5), *back.DeletionGracePeriod)
}

func TestContainerConfigOfEphemeral(t *testing.T) {
	pod := podOf("Always", "a", "eph:e")
	pod.Spec.EphemeralContainers[0].TargetContainerName = "a"
	start := ComputeActions(pod, statusOf(running("a", 20)), Inputs{}).Start[0]
	got, err := testBuilder().ContainerConfig(ContainerInputs{Pod: pod, Start: start})
	require.NoError(t, err)
	require.Equal(t, runtimeapi.NamespaceMode_TARGET, got.Linux.SecurityContext.NamespaceOptions.Pid)
	require.Equal(t, "a-20", got.Linux.SecurityContext.NamespaceOptions.TargetId)
	start.TargetID = ""
	_, err = testBuilder().ContainerConfig(ContainerInputs{Pod: pod, Start: start})
	require.EqualError(t, err, "unable to find target container a")
}

func TestRealTimeStopSignal(t *testing.T) {
	pod := podOf("Always", "a")
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: ptr.To(corev1.SIGRTMINPLUS3)}
	got, err := testBuilder().ContainerConfig(ContainerInputs{Pod: pod, Start: Start{Container: &pod.Spec.Containers[0]}})
	require.NoError(t, err)
	require.Equal(t, runtimeapi.Signal_SIGRTMINPLUS3, got.StopSignal)
}

func TestContainerConfigRefuses(t *testing.T) {
	for message, change := range map[string]func(*corev1.Container){
		"non-root": func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: new(int64)}
		},
		"volumeDevice": func(c *corev1.Container) { c.VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}} },
		"stopSignal": func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{StopSignal: ptr.To(corev1.Signal("SIGNOT"))}
		},
	} {
		t.Run(message, func(t *testing.T) {
			pod := podOf("Always", "a")
			change(&pod.Spec.Containers[0])
			_, err := testBuilder().ContainerConfig(ContainerInputs{Pod: pod, Start: Start{Container: &pod.Spec.Containers[0]}})
			require.ErrorContains(t, err, message)
			var config *container.ConfigError
			require.ErrorAs(t, err, &config)
		})
	}
}

func TestMounts(t *testing.T) {
	pod := podOf("Always", "a")
	c := &pod.Spec.Containers[0]
	c.TerminationMessagePath = "dev/log"
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "plain", MountPath: "/data", MountPropagation: ptr.To(corev1.MountPropagationHostToContainer)},
		{Name: "plain", MountPath: "rel", SubPathExpr: "$(WHO)/x", ReadOnly: true,
			RecursiveReadOnly: ptr.To(corev1.RecursiveReadOnlyIfPossible)},
		{Name: "locked", MountPath: "/etc/hosts"},
		{Name: "image", MountPath: "/img", SubPath: "sub"},
	}
	asked := SubPathRequest{}
	in := MountInputs{
		Pod: pod, Container: c, HostsFile: "/pod/etc-hosts", TerminationLog: "/pod/log",
		Env: []envvars.Var{{Name: "WHO", Value: "me"}},
		Volumes: map[string]Volume{
			"plain": {HostPath: "/v/plain"}, "locked": {HostPath: "/v/locked", ReadOnly: true},
			"image": {Image: &runtimeapi.ImageSpec{Image: "i"}},
		},
		SubPath: func(_ context.Context, r SubPathRequest) (string, error) {
			asked = r
			return "/safe", nil
		},
	}
	got, err := testBuilder().Mounts(t.Context(), in)
	require.NoError(t, err)
	want := []*runtimeapi.Mount{
		{HostPath: "/v/plain", ContainerPath: "/data", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
		{HostPath: "/safe", ContainerPath: "/rel", Readonly: true, RecursiveReadOnly: true},
		{HostPath: "/v/locked", ContainerPath: "/etc/hosts", Readonly: true},
		{ContainerPath: "/img", Image: &runtimeapi.ImageSpec{Image: "i"}, ImageSubPath: "sub", Readonly: true},
		{HostPath: "/pod/log", ContainerPath: "/dev/log"},
	}
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].String(), got[i].String())
	}
	require.Equal(t, SubPathRequest{Pod: pod, Container: "a", Index: 1, Volume: "plain", VolumePath: "/v/plain", SubPath: "me/x"}, asked)

	c.VolumeMounts = nil
	got, err = testBuilder().Mounts(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, "/etc/hosts", got[0].ContainerPath)
}

func TestMountsRefuses(t *testing.T) {
	for message, mount := range map[string]corev1.VolumeMount{
		`cannot find volume "none"`:     {Name: "none", MountPath: "/x"},
		"must not be an absolute path":  {Name: "v", MountPath: "/x", SubPath: "/etc"},
		"must not contain '..'":         {Name: "v", MountPath: "/x", SubPathExpr: "$(UP)/x"},
		`missing value for "NOT"`:       {Name: "v", MountPath: "/x", SubPathExpr: "$(NOT)"},
		"host is on fire":               {Name: "v", MountPath: "/x", SubPath: "ok"},
		"mountPropagation":              {Name: "v", MountPath: "/x", MountPropagation: ptr.To(corev1.MountPropagationMode("Odd"))},
		"is not read-only":              {Name: "v", MountPath: "/x", RecursiveReadOnly: ptr.To(corev1.RecursiveReadOnlyEnabled)},
		"not compatible with":           {Name: "v", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: ptr.To(corev1.RecursiveReadOnlyEnabled), MountPropagation: ptr.To(corev1.MountPropagationBidirectional)},
		"not supported by the runtime":  {Name: "v", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: ptr.To(corev1.RecursiveReadOnlyEnabled)},
		"recursiveReadOnly \"Perhaps\"": {Name: "v", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: ptr.To(corev1.RecursiveReadOnlyMode("Perhaps"))},
	} {
		t.Run(message, func(t *testing.T) {
			pod := podOf("Always", "a")
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{mount}
			_, err := NewBuilder(Config{}).Mounts(t.Context(), MountInputs{
				Pod: pod, Container: &pod.Spec.Containers[0], Volumes: map[string]Volume{"v": {HostPath: "/v"}},
				Env:     []envvars.Var{{Name: "UP", Value: ".."}},
				SubPath: func(context.Context, SubPathRequest) (string, error) { return "", errors.New("host is on fire") },
			})
			require.ErrorContains(t, err, message)
		})
	}
}

func TestTerminationPlan(t *testing.T) {
	pod := podOf("Always", "side:s", "init:i", "side:t", "a", "b")
	var held []*container.ContainerStatus
	for _, name := range []string{"s", "b", "t", "a", "stranger"} {
		held = append(held, running(name, 20))
	}
	plan := TerminationPlan(pod, held, 30)
	after := map[string][]string{}
	for _, stop := range plan {
		after[stop.Status.Name] = []string{}
		for _, i := range stop.After {
			after[stop.Status.Name] = append(after[stop.Status.Name], plan[i].Status.Name)
		}
	}
	require.Equal(t, map[string][]string{
		"a": {}, "b": {}, "stranger": {}, "t": {"a", "b"}, "s": {"a", "b", "t"},
	}, after)
	require.Equal(t, "a", plan[3].Container.Name)
	require.Nil(t, plan[4].Container)
	for _, stop := range TerminationPlan(pod, held, 0) {
		require.Empty(t, stop.After, "without grace no container waits")
	}
	require.Len(t, TerminationPlan(nil, held, 30), 5, "the Pod may be gone")
}

func TestGracePeriods(t *testing.T) {
	deleted := &metav1.Time{Time: epoch}
	for name, c := range map[string]struct {
		spec, deletion, override *int64
		deleted                  *metav1.Time
		want                     int64
	}{
		"spec":                      {spec: ptr.To[int64](30), want: 30},
		"nothing":                   {want: 1},
		"spec 0":                    {spec: new(int64), want: 1},
		"deletion":                  {spec: ptr.To[int64](30), deletion: ptr.To[int64](5), deleted: deleted, want: 5},
		"forced":                    {spec: ptr.To[int64](30), deletion: new(int64), deleted: deleted, want: 1},
		"override is shorter":       {spec: ptr.To[int64](30), deletion: ptr.To[int64](9), deleted: deleted, override: ptr.To[int64](4), want: 4},
		"override is longer":        {spec: ptr.To[int64](30), deletion: ptr.To[int64](9), deleted: deleted, override: ptr.To[int64](40), want: 9},
		"no end":                    {spec: ptr.To[int64](math.MaxInt64), want: maxGracePeriod},
		"deletion without an end":   {deletion: ptr.To[int64](9_999_999_999), deleted: deleted, want: maxGracePeriod},
		"override without a delete": {spec: ptr.To[int64](30), override: ptr.To[int64](4), want: 4},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf("Always", "a")
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = c.deleted, c.deletion
			pod.Spec.TerminationGracePeriodSeconds = c.spec
			require.Equal(t, c.want, PodGracePeriod(pod, c.override))
		})
	}
	pod := podOf("Always", "a")
	main := &pod.Spec.Containers[0]
	main.LivenessProbe = &corev1.Probe{TerminationGracePeriodSeconds: ptr.To[int64](3)}
	require.Equal(t, MinGracePeriod, KillGracePeriod(pod, Kill{Container: main, Reason: KillUnknown}))
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	require.Equal(t, int64(30), KillGracePeriod(pod, Kill{Container: main, Reason: KillStartup}))
	require.Equal(t, int64(3), KillGracePeriod(pod, Kill{Container: main, Reason: KillLiveness}))
	require.Equal(t, int64(0), KillGracePeriod(pod, Kill{Container: main, Reason: KillRestartAll, GracePeriod: new(int64)}))
	main.LivenessProbe.TerminationGracePeriodSeconds = ptr.To[int64](math.MaxInt64)
	require.Equal(t, maxGracePeriod, KillGracePeriod(pod, Kill{Container: main, Reason: KillLiveness}))
	now := time.Now()
	require.Greater(t, now.Add(time.Duration(maxGracePeriod)*time.Second).Sub(now), 100*365*24*time.Hour, "it has not passed already")
	pod.DeletionGracePeriodSeconds = ptr.To[int64](8)
	require.Equal(t, int64(8), KillGracePeriod(pod, Kill{Container: main, Reason: KillLiveness}))
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	pod := podOf("Always", "a")
	_, known := LastAttemptInLogs(dir, pod, "a")
	require.False(t, known)
	require.NoError(t, EnsureLogDir(dir, pod, "a"))
	for _, name := range []string{"0.log", "2.log", "11.log.20260101-000000.gz", "12.logger", "x.log", "99999999999.log"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ns_p_u1", "a", name), nil, 0o600))
	}
	n, known := LastAttemptInLogs(dir, pod, "a")
	require.True(t, known)
	require.Equal(t, uint32(11), n)

	path, err := CreateTerminationLog(dir, "a", 3)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o666), info.Mode())
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	again, err := CreateTerminationLog(dir, "a", 3)
	require.NoError(t, err)
	require.Equal(t, path, again)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, content)

	none, err := testBuilder().EnsureHostsFile(slog.New(slog.DiscardHandler), pod, dir, "/etc/hosts", nil)
	require.NoError(t, err)
	require.Empty(t, none, "no address yet")
	hosts, err := testBuilder().EnsureHostsFile(slog.New(slog.DiscardHandler), pod, dir, "/etc/hosts", []string{"10.0.0.1"})
	require.NoError(t, err)
	before, err := os.Stat(hosts)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), before.Mode())
	_, err = testBuilder().EnsureHostsFile(slog.New(slog.DiscardHandler), pod, dir, "/etc/hosts", []string{"10.0.0.2"})
	require.NoError(t, err)
	after, err := os.Stat(hosts)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "running containers have this very file mounted")
	content, err = os.ReadFile(hosts)
	require.NoError(t, err)
	require.Contains(t, string(content), "10.0.0.2\tp\n")
}
