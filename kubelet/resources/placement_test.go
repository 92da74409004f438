package resources_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/resources"
	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
)

// exclusivePod requests one CPU for its container c.
func exclusivePod(uid types.UID) *corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: list, Limits: list},
	}}}}
}

func TestContainersStartWhenTheirCPUsAreLeft(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m, err := resources.New(resources.Deps{
			Client: fake.NewClientset(), Topology: machinetest.New(1, 1, 4, 1), OnPoolChanged: func() {}, OnDevicesChanged: func() {}, OnHealthChanged: func(types.UID) {},
		}, resources.Config{Dir: dir, StaticCPUs: true, ReservedCPUCount: 1})
		require.NoError(t, err)
		require.NoError(t, m.Open())
		idle := func(string) bool { return false }
		starting, err := m.Place(t.Context(), "starting", "c")
		require.NoError(t, err)
		require.Equal(t, "0-3", starting.CPUs)
		m.Placed("running", map[string]string{"c": ""}, idle)
		m.Placed("elsewhere", map[string]string{"c": "0"}, idle)
		require.True(t, m.Admit(&lifecycle.PodAdmitAttributes{Pod: exclusivePod("own")}).Admit)

		placed := make(chan error, 1)
		place := func(ctx context.Context) {
			go func() {
				_, err := m.Place(ctx, "own", "c")
				placed <- err
			}()
			synctest.Wait()
		}
		place(t.Context())
		require.Empty(t, placed)
		m.Placed("running", map[string]string{"c": "0,2-3"}, idle)
		synctest.Wait()
		require.Empty(t, placed, "the other is still starting")
		m.Placed("starting", nil, func(string) bool { return true })
		synctest.Wait()
		require.Empty(t, placed)
		m.NotStarted("starting", "c")
		require.NoError(t, <-placed)

		m.Placed("running", map[string]string{"c": "0-3"}, idle)
		place(t.Context())
		require.ErrorContains(t, <-placed, `container "c" is to have CPUs 1 for itself: container "c" of Pod running still runs on them`)
		ctx, cancel := context.WithCancel(t.Context())
		place(ctx)
		cancel()
		require.ErrorIs(t, <-placed, context.Canceled)
		m.Release("running")
		place(t.Context())
		require.NoError(t, <-placed)
	})
}
