package agent

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri/fake"
)

// recordingRuntime records the commands and the stops of containers.
type recordingRuntime struct {
	*fake.Runtime
	mu    sync.Mutex
	names map[string]string // of containers, by ID
	calls []string
}

func (r *recordingRuntime) record(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

func (r *recordingRuntime) name(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[id]
}

// CreateContainer implements container.Runtime.
func (r *recordingRuntime) CreateContainer(ctx context.Context, in *runtimeapi.CreateContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.CreateContainerResponse, error) {
	resp, err := r.Runtime.CreateContainer(ctx, in, opts...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[resp.GetContainerId()] = in.GetConfig().GetMetadata().GetName()
	return resp, err
}

// ExecSync implements container.Runtime.
func (r *recordingRuntime) ExecSync(_ context.Context, in *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecSyncResponse, error) {
	r.record("exec %s: %s", r.name(in.ContainerId), in.Cmd[0])
	return &runtimeapi.ExecSyncResponse{}, nil
}

// StopContainer implements container.Runtime.
func (r *recordingRuntime) StopContainer(ctx context.Context, in *runtimeapi.StopContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.StopContainerResponse, error) {
	r.record("stop %s within %d s", r.name(in.ContainerId), in.Timeout)
	return r.Runtime.StopContainer(ctx, in, opts...)
}

// TestStopPodsEndsPodsAsAlways stops a Pod with a preStop hook and a sidecar: the hook runs, the sidecar ends last, and the
// grace period is the Pod's own, but at most the configured one.
func TestStopPodsEndsPodsAsAlways(t *testing.T) {
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v1")
	}
	for name, c := range map[string]struct {
		own  int64
		want int
	}{"its own grace period": {5, 5}, "the configured one": {60, 20}} {
		t.Run(name, func(t *testing.T) {
			var runtime *recordingRuntime
			f := newFixture(t, func(d *Deps, c *Config) {
				runtime = &recordingRuntime{Runtime: d.Runtime.(*fake.Runtime), names: map[string]string{}}
				d.Runtime, c.Pods.ShutdownGracePeriod = runtime, 20*time.Second
				c.Cgroups.Root = fmt.Sprintf("/berth-stop-%d-%d", os.Getpid(), len(name))
			})
			running := make(chan struct{}, 1)
			f.agent.Subscribe(func(event PodEvent) {
				if event.Status.Phase == corev1.PodRunning && podutil.IsReady(&event.Status) {
					select {
					case running <- struct{}{}:
					default:
					}
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- f.agent.Start(ctx) }()
			f.agent.SetStatic([]*corev1.Pod{{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "u",
					Annotations: map[string]string{config.SourceAnnotation: config.SourceFile}},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: &c.own, DNSPolicy: corev1.DNSDefault,
					InitContainers: []corev1.Container{{Name: "proxy", Image: "app:1", ImagePullPolicy: corev1.PullAlways,
						RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}},
					Containers: []corev1.Container{{Name: "app", Image: "app:1", ImagePullPolicy: corev1.PullAlways,
						Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"drain"}}}}}},
				},
			}})
			<-running
			cancel()
			require.NoError(t, <-done)
			require.Empty(t, runtime.calls, "containers outlive the agent")
			require.NoError(t, f.agent.StopPods(t.Context()))
			require.Equal(t, []string{
				"exec app: drain", fmt.Sprintf("stop app within %d s", c.want), fmt.Sprintf("stop proxy within %d s", c.want),
			}, runtime.calls)
			require.Empty(t, runtime.Running())
			_, containers := runtime.Counts()
			require.Equal(t, 2, containers, "the next start finds what is left of them")
		})
	}
}

var _ container.Runtime = (*recordingRuntime)(nil)
