package starting_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/starting"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slowRuntime takes some time for each call, which fails.
type slowRuntime struct {
	container.Runtime
	takes time.Duration
}

var errFailed = errors.New("failed")

func (s slowRuntime) RunPodSandbox(context.Context, *runtimeapi.RunPodSandboxRequest, ...grpc.CallOption) (*runtimeapi.RunPodSandboxResponse, error) {
	time.Sleep(s.takes)
	return nil, errFailed
}

func (s slowRuntime) CreateContainer(context.Context, *runtimeapi.CreateContainerRequest, ...grpc.CallOption) (*runtimeapi.CreateContainerResponse, error) {
	time.Sleep(s.takes)
	return nil, errFailed
}

func (s slowRuntime) StartContainer(context.Context, *runtimeapi.StartContainerRequest, ...grpc.CallOption) (*runtimeapi.StartContainerResponse, error) {
	time.Sleep(s.takes)
	return nil, errFailed
}

// TestWritesYieldToStarts has each kind of start under way: what yields waits for its end, also if it fails, but not for longer than
// MaxYield, and not after its context has ended.
func TestWritesYieldToStarts(t *testing.T) {
	for name, start := range map[string]func(r starting.Runtime) error{
		"sandbox": func(r starting.Runtime) error {
			_, err := r.RunPodSandbox(t.Context(), nil)
			return err
		},
		"create": func(r starting.Runtime) error {
			_, err := r.CreateContainer(t.Context(), nil)
			return err
		},
		"start": func(r starting.Runtime) error {
			_, err := r.StartContainer(t.Context(), nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate, began := starting.NewGate(clock.RealClock{}), time.Now()
				gate.Yield(t.Context(), began)
				require.Zero(t, time.Since(began), "nothing is being started")
				require.False(t, gate.Yields(began))

				startFor := func(takes time.Duration) {
					ended := make(chan error, 1)
					go func() { ended <- start(starting.NewRuntime(slowRuntime{takes: takes}, gate)) }()
					synctest.Wait()
					t.Cleanup(func() { require.ErrorIs(t, <-ended, errFailed) })
				}
				startFor(time.Second)
				startFor(2 * time.Second)
				require.True(t, gate.Yields(began))
				gate.Yield(t.Context(), began)
				require.Equal(t, 2*time.Second, time.Since(began), "the end of the last start")
				require.False(t, gate.Yields(began))

				startFor(time.Hour)
				began = time.Now()
				gate.Yield(t.Context(), began.Add(-time.Second))
				require.Equal(t, starting.MaxYield-time.Second, time.Since(began))
				require.False(t, gate.Yields(began.Add(-time.Second)))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began = time.Now()
				gate.Yield(ctx, began)
				require.Equal(t, time.Second, time.Since(began))
			})
		})
	}
}
