package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/up/containerd"
)

// fakeCRI answers what readiness asks: not yet for the first calls, then with its conditions.
type fakeCRI struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	notYet     int
	asked      chan struct{} // gets a value for each Version call
	conditions []*runtimeapi.RuntimeCondition
	info       map[string]string
}

func (f *fakeCRI) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	if f.asked != nil {
		f.asked <- struct{}{}
	}
	if f.notYet > 0 {
		f.notYet--
		return nil, status.Error(codes.Unavailable, "server is not initialized yet")
	}
	return &runtimeapi.VersionResponse{Version: "v1"}, nil
}

func (f *fakeCRI) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: f.conditions}, Info: f.info,
	}, nil
}

// serve listens on the configuration's socket until the test ends.
func (f *fakeCRI) serve(t *testing.T, c containerd.Config) {
	require.NoError(t, c.Write())
	listener, err := net.Listen("unix", c.Socket())
	require.NoError(t, err)
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // It ends when stopped below.
	}()
	t.Cleanup(func() { server.Stop(); <-done })
}

func conditions(runtimeReady, networkReady bool) []*runtimeapi.RuntimeCondition {
	return []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: runtimeReady, Reason: "R", Message: "the runtime sleeps"},
		{Type: runtimeapi.NetworkReady, Status: networkReady, Reason: "N", Message: "no network"},
		{Type: "Other", Status: false},
	}
}

func rootInfo(root string) map[string]string {
	return map[string]string{"config": fmt.Sprintf(`{"containerdRootDir": %q}`, root)}
}

func TestProbe(t *testing.T) {
	for name, tt := range map[string]struct {
		fake fakeCRI
		want []string
	}{
		"ready":               {fake: fakeCRI{conditions: conditions(true, true)}},
		"not initialised":     {fake: fakeCRI{notYet: 1, conditions: conditions(true, true)}, want: []string{"not initialized"}},
		"nothing is ready":    {fake: fakeCRI{conditions: conditions(false, false)}, want: []string{"the runtime sleeps", "no network"}},
		"network is not":      {fake: fakeCRI{conditions: conditions(true, false)}, want: []string{"NetworkReady is not met: N no network"}},
		"nothing is reported": {want: []string{"RuntimeReady is not met: not reported", "NetworkReady"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := exampleConfig(shortDir(t))
			tt.fake.serve(t, c)
			err := containerd.Probe(t.Context(), c.Socket())
			if tt.want == nil {
				require.NoError(t, err)
			}
			for _, want := range tt.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestWaitReadyAsksAgain(t *testing.T) {
	c := exampleConfig(shortDir(t))
	fake := &fakeCRI{notYet: 2, asked: make(chan struct{}), conditions: conditions(true, true), info: rootInfo(c.Root)}
	fake.serve(t, c)
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	ready := make(chan error, 1)
	go func() { ready <- c.WaitReady(t.Context(), clock) }()
	for range 2 {
		<-fake.asked
		clock.Step(time.Minute)
	}
	<-fake.asked
	require.NoError(t, <-ready)
}

// TestWaitReadyWritesTheNetworkAgain if that alone is missing: containerd may have failed to read it.
func TestWaitReadyWritesTheNetworkAgain(t *testing.T) {
	for name, runtimeReady := range map[string]bool{"the network is missing": true, "all is missing": false} {
		t.Run(name, func(t *testing.T) {
			c := exampleConfig(shortDir(t))
			fake := &fakeCRI{asked: make(chan struct{}), conditions: conditions(runtimeReady, false), info: rootInfo(c.Root)}
			fake.serve(t, c)
			networks := filepath.Join(c.CNIConfDir, "10-berth.conflist")
			want, err := os.ReadFile(networks)
			require.NoError(t, err)
			require.NoError(t, os.Remove(networks))
			ctx, cancel := context.WithCancel(t.Context())
			clock := clocktesting.NewFakeClock(time.Unix(0, 0))
			ready := make(chan error, 1)
			go func() { ready <- c.WaitReady(ctx, clock) }()
			<-fake.asked
			require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
			require.NoFileExists(t, networks, "it waits at first")
			clock.Step(time.Minute)
			<-fake.asked
			require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
			cancel()
			require.Error(t, <-ready)
			have, err := os.ReadFile(networks)
			require.Equal(t, runtimeReady, err == nil)
			require.Equal(t, runtimeReady, string(have) == string(want))
		})
	}
}

func TestWaitReadySaysWhatWasMissing(t *testing.T) {
	c := exampleConfig(shortDir(t))
	fake := &fakeCRI{conditions: conditions(true, false), asked: make(chan struct{}, 1)}
	fake.serve(t, c)
	why := errors.New("the person pressed Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-fake.asked
		cancel(why)
	}()
	// A clock that stands still: only the end of ctx ends the wait. The first answer may itself be cut off.
	err := c.WaitReady(ctx, clocktesting.NewFakeClock(time.Unix(0, 0)))
	require.ErrorIs(t, err, why)
	require.ErrorContains(t, err, "last error")
}

func TestForeign(t *testing.T) {
	for name, tt := range map[string]struct {
		info    map[string]string
		foreign bool
	}{
		"ours":     {info: rootInfo("ROOT")},
		"another":  {info: rootInfo("/var/lib/containerd"), foreign: true},
		"not one":  {info: nil, foreign: true},
		"not JSON": {info: map[string]string{"config": "x"}, foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := exampleConfig(shortDir(t))
			if tt.info["config"] == rootInfo("ROOT")["config"] {
				tt.info = rootInfo(c.Root)
			}
			fake := &fakeCRI{conditions: conditions(true, true), info: tt.info}
			fake.serve(t, c)
			for _, err := range []error{c.CheckFree(t.Context()), c.WaitReady(t.Context(), clock.RealClock{})} {
				if tt.foreign {
					require.ErrorIs(t, err, containerd.ErrForeign)
				} else {
					require.NoError(t, err)
				}
			}
		})
	}
	require.NoError(t, exampleConfig(shortDir(t)).CheckFree(t.Context()), "there is no socket")
}
