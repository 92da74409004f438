package claims_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

// NodeWatchResources sends the driver's reports.
func (d *driver) NodeWatchResources(_ *healthapi.NodeWatchResourcesRequest, to healthapi.DRAResourceHealth_NodeWatchResourcesServer) error {
	for {
		select {
		case report := <-d.reports:
			if err := to.Send(&healthapi.NodeWatchResourcesResponse{Devices: report}); err != nil {
				return err
			}
		case <-to.Context().Done():
			return nil
		}
	}
}

func (f *fixture) report(devices ...*healthapi.DeviceHealth) {
	f.t.Helper()
	select {
	case f.driver.reports <- devices:
	case <-time.After(testTimeout):
		f.t.Fatal("no kubelet watches the health of the driver's devices")
	}
}

func (f *fixture) waitChanged(uid types.UID) {
	f.t.Helper()
	select {
	case got := <-f.changed:
		require.Equal(f.t, uid, got)
	case <-time.After(testTimeout):
		f.t.Fatal("no Pod was notified")
	}
}

func (f *fixture) start() {
	running, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	manager := f.Manager
	go func() { done <- manager.Start(running) }()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-done)
	})
}

func gpu(health healthapi.HealthStatus, message string, seconds int64) *healthapi.DeviceHealth {
	return &healthapi.DeviceHealth{
		Device: &healthapi.DeviceIdentifier{PoolName: "pool", DeviceName: "gpu-0"}, Health: health, Message: message, HealthCheckTimeoutSeconds: seconds,
	}
}

func TestHealthOfDevices(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	clock := clocktesting.NewFakeClock(time.Now())
	f.clock = clock
	f.restart()
	f.start()
	f.claim("one", "a")
	pod := podOf("a", "one", "gpu")
	c := &pod.Spec.Containers[0]
	require.Empty(t, f.Status(pod, c))
	require.NoError(t, f.Register(ctx, f.plugin()))
	require.NoError(t, f.Prepare(ctx, pod))
	want := func(health corev1.ResourceHealthStatus, message *string) {
		t.Helper()
		require.Equal(t, []corev1.ResourceStatus{{
			Name: "claim:mine/gpu", Resources: []corev1.ResourceHealth{{ResourceID: "example.com/gpu=0", Health: health, Message: message}},
		}}, f.Status(pod, c))
	}
	want(corev1.ResourceHealthStatusUnknown, nil)

	f.report(gpu(healthapi.HealthStatus_HEALTHY, "", 0))
	f.waitChanged("a")
	want(corev1.ResourceHealthStatusHealthy, nil)
	f.report(gpu(healthapi.HealthStatus_HEALTHY, "", 0))
	f.report(gpu(healthapi.HealthStatus_UNHEALTHY, "too hot"+strings.Repeat("!", 2000), 60))
	f.waitChanged("a")
	require.Len(t, f.changed, 0, "the same health once more is no change")
	want(corev1.ResourceHealthStatusUnhealthy, ptr.To("too hot"+strings.Repeat("!", 1014)+"..."))

	f.report() // a device that a report lacks keeps its health for a while
	f.report()
	want(corev1.ResourceHealthStatusUnhealthy, ptr.To("too hot"+strings.Repeat("!", 1014)+"..."))
	require.Eventually(t, func() bool { // the last report may set the timer anew while the clock is moved
		clock.Step(time.Minute)
		return len(f.changed) > 0
	}, testTimeout, tick)
	f.waitChanged("a")
	want(corev1.ResourceHealthStatusUnknown, nil)

	f.report(gpu(healthapi.HealthStatus_HEALTHY, "", 0))
	f.waitChanged("a")
	require.NoError(t, f.Deregister(ctx, f.plugin()))
	f.waitChanged("a")
	want(corev1.ResourceHealthStatusUnknown, nil)
}

func TestClaimsInUseAreCounted(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	inUse := func(want string) {
		t.Helper()
		registry := prometheus.NewPedanticRegistry()
		for _, c := range f.Collectors() {
			registry.MustRegister(c)
		}
		const header = "# HELP dra_resource_claims_in_use ResourceClaims that are prepared on the node, by driver; <any> counts each claim once.\n" +
			"# TYPE dra_resource_claims_in_use gauge\n"
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(header+want), "dra_resource_claims_in_use"))
	}
	inUse("dra_resource_claims_in_use{driver_name=\"<any>\"} 0\n")
	f.claim("one", "a")
	require.NoError(t, f.Register(ctx, f.plugin()))
	require.NoError(t, f.Prepare(ctx, podOf("a", "one", "gpu")))
	inUse("dra_resource_claims_in_use{driver_name=\"<any>\"} 1\ndra_resource_claims_in_use{driver_name=\"dra.example.com\"} 1\n")
	require.NoError(t, f.Unprepare(ctx, "a"))
	inUse("dra_resource_claims_in_use{driver_name=\"<any>\"} 0\n")
}

// TestHealthMessagesAreCutBetweenCharacters: the API server counts bytes, and half a character becomes a longer one on its way there.
func TestHealthMessagesAreCutBetweenCharacters(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	f.start()
	f.claim("one", "a")
	pod := podOf("a", "one", "gpu")
	require.NoError(t, f.Register(ctx, f.plugin()))
	require.NoError(t, f.Prepare(ctx, pod))
	f.report(gpu(healthapi.HealthStatus_UNHEALTHY, strings.Repeat("é", 1000), 0))
	f.waitChanged("a")
	sent, err := json.Marshal(f.Status(pod, &pod.Spec.Containers[0])[0].Resources[0].Message)
	require.NoError(t, err)
	var received string
	require.NoError(t, json.Unmarshal(sent, &received))
	require.Equal(t, strings.Repeat("é", 510)+"...", received)
}

// TestHealthThatHoldsForEver has a driver that reports changes only.
func TestHealthThatHoldsForEver(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	f.start()
	f.claim("one", "a")
	pod := podOf("a", "one", "gpu")
	require.NoError(t, f.Register(ctx, f.plugin()))
	require.NoError(t, f.Prepare(ctx, pod))
	f.report(gpu(healthapi.HealthStatus_HEALTHY, "", math.MaxInt64))
	f.waitChanged("a")
	require.Equal(t, corev1.ResourceHealthStatusHealthy, f.Status(pod, &pod.Spec.Containers[0])[0].Resources[0].Health)
}
