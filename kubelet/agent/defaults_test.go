package agent

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/boottime"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/cri/fake"
)

// creatingRuntime passes on with what each container is created.
type creatingRuntime struct {
	*fake.Runtime
	created chan *runtimeapi.LinuxContainerConfig
}

// CreateContainer implements container.Runtime.
func (r *creatingRuntime) CreateContainer(ctx context.Context, in *runtimeapi.CreateContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.CreateContainerResponse, error) {
	r.created <- in.Config.Linux
	return r.Runtime.CreateContainer(ctx, in, opts...)
}

// TestNodeDefaultsReachContainers runs a Pod that names no seccomp profile, with each value of the node's configuration. Its
// container IDs begin with the runtime's own name.
func TestNodeDefaultsReachContainers(t *testing.T) {
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v1")
	}
	half := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	ofContainer := func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Limits = half }
	ofPod := func(pod *corev1.Pod) { pod.Spec.Resources = &corev1.ResourceRequirements{Limits: half, Requests: half} }
	for name, c := range map[string]struct {
		pod     func(*corev1.Pod)
		change  func(*Config)
		profile runtimeapi.SecurityProfile_ProfileType
		period  int64
		quota   int64
	}{
		"defaults":       {ofContainer, func(*Config) {}, runtimeapi.SecurityProfile_Unconfined, 100_000, 50_000},
		"seccompDefault": {ofContainer, func(c *Config) { c.Pods.SeccompDefault = true }, runtimeapi.SecurityProfile_RuntimeDefault, 100_000, 50_000},
		"quota period": {ofContainer, func(c *Config) { c.Cgroups.CPUQuotaPeriod = 20 * time.Millisecond },
			runtimeapi.SecurityProfile_Unconfined, 20_000, 10_000},
		"no quota":         {ofContainer, func(c *Config) { c.Cgroups.NoCPUQuota = true }, runtimeapi.SecurityProfile_Unconfined, 0, 0},
		"of the Pod":       {ofPod, func(*Config) {}, runtimeapi.SecurityProfile_Unconfined, 100_000, 50_000},
		"no Pod resources": {ofPod, func(c *Config) { c.Pods.NoPodResources = true }, runtimeapi.SecurityProfile_Unconfined, 100_000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u",
					Annotations: map[string]string{config.SourceAnnotation: config.SourceFile}},
				Spec: corev1.PodSpec{DNSPolicy: corev1.DNSDefault, Containers: []corev1.Container{{
					Name: "app", Image: "app:1", ImagePullPolicy: corev1.PullAlways,
				}}},
			}
			c.pod(pod)
			created := make(chan *runtimeapi.LinuxContainerConfig, 1)
			f := newFixture(t, func(d *Deps, config *Config) {
				d.Runtime = &creatingRuntime{d.Runtime.(*fake.Runtime), created}
				config.Cgroups.Root = strings.ReplaceAll(config.Cgroups.Root, " ", "-")
				c.change(config)
			})
			statuses := make(chan string, 100)
			f.agent.Subscribe(func(event PodEvent) {
				for _, s := range event.Status.ContainerStatuses {
					statuses <- s.ContainerID
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- f.agent.Start(ctx) }()
			defer func() {
				cancel()
				require.NoError(t, <-done)
				require.NoError(t, f.agent.StopPods(context.WithoutCancel(t.Context())))
				require.NoError(t, f.agent.Cleanup(context.WithoutCancel(t.Context())))
			}()
			f.agent.SetStatic([]*corev1.Pod{pod.DeepCopy()})
			linux := <-created
			require.Equal(t, c.profile, linux.SecurityContext.Seccomp.GetProfileType())
			require.Equal(t, c.period, linux.Resources.CpuPeriod)
			require.Equal(t, c.quota, linux.Resources.CpuQuota)
			id := ""
			for id == "" {
				id = <-statuses
			}
			require.True(t, strings.HasPrefix(id, "fake://"), id)
		})
	}
}

// TestTokensEndWhileTheMachineSleeps has them renewed by a clock that goes on meanwhile, unless a caller gives the agent another clock than the
// machine's.
func TestTokensEndWhileTheMachineSleeps(t *testing.T) {
	fake := testclock.NewFakeClock(time.Unix(1, 0))
	for _, given := range []clock.WithTicker{nil, clock.RealClock{}, fake} {
		deps := Deps{Clock: given}
		require.NoError(t, deps.complete())
		if given == fake {
			require.Equal(t, fake, deps.sleepless)
			continue
		}
		require.IsType(t, &boottime.Clock{}, deps.sleepless)
	}
}
