package resources_test

import (
	"context"
	"os"
	"path/filepath"
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
	"github.com/berth-dev/berth/kubelet/resources/cpus"
	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
)

// exclusivePod requests one CPU for its container c.
func exclusivePod(uid types.UID) *corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: list, Limits: list},
	}}}}
}

// newPlacing returns a Manager of a machine with 4 CPUs of which 0 is reserved. It has admitted the Pod own, whose container c has CPU 1.
func newPlacing(t *testing.T, dir string) *resources.Manager {
	m := unopened(t, dir)
	require.NoError(t, m.Open())
	return m
}

func unopened(t *testing.T, dir string) *resources.Manager {
	m, err := resources.New(resources.Deps{
		Client: fake.NewClientset(), Topology: machinetest.New(1, 1, 4, 1), OnPoolChanged: func() {}, OnDevicesChanged: func() {}, OnHealthChanged: func(types.UID) {},
	}, resources.Config{Dir: dir, StaticCPUs: true, ReservedCPUCount: 1})
	require.NoError(t, err)
	return m
}

// place calls Place for the container of the Pod own, and returns when that waits or has returned.
func place(ctx context.Context, m *resources.Manager) <-chan error {
	placed := make(chan error, 1)
	go func() {
		_, err := m.Place(ctx, "own", "c")
		placed <- err
	}()
	synctest.Wait()
	return placed
}

func admitOwn(t *testing.T, m *resources.Manager) {
	require.True(t, m.Admit(&lifecycle.PodAdmitAttributes{Pod: exclusivePod("own")}).Admit)
}

func none(string) bool { return false }
func all(string) bool  { return true }

func TestContainersStartWhenTheirCPUsAreLeft(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := newPlacing(t, dir)
		m.Adopt(nil)
		starting, err := m.Place(t.Context(), "starting", "c")
		require.NoError(t, err)
		require.Equal(t, "0-3", starting.CPUs)
		m.Placed("running", map[string]string{"c": ""}, none)
		m.Placed("elsewhere", map[string]string{"c": "0"}, none)
		admitOwn(t, m)

		placed := place(t.Context(), m)
		require.Empty(t, placed)
		m.Placed("running", map[string]string{"c": "0,2-3"}, none)
		synctest.Wait()
		require.Empty(t, placed, "the other is still starting")
		m.Placed("starting", nil, all)
		synctest.Wait()
		require.Empty(t, placed)
		m.Placed("starting", nil, none) // it has failed
		require.NoError(t, <-placed)

		m.Placed("running", map[string]string{"c": "0-3"}, none)
		require.ErrorContains(t, <-place(t.Context(), m), `container "c" is to have CPUs 1 for itself: container "c" of Pod running still runs on them`)
		ctx, cancel := context.WithCancel(t.Context())
		placed = place(ctx, m)
		cancel()
		require.ErrorIs(t, <-placed, context.Canceled)
		m.Release("running")
		require.NoError(t, <-place(t.Context(), m))
	})
}

func TestContainersCountWhereTheyMoveToAndWhereTheyWere(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := newPlacing(t, dir)
		m.Adopt(nil)
		m.Placed("shared", map[string]string{"c": "0"}, none)
		require.Equal(t, "0-3", m.Move("shared", "c").CPUs)
		admitOwn(t, m)
		placed := place(t.Context(), m)
		require.Empty(t, placed, "the call that moves the other may come at any time")
		m.Placed("shared", map[string]string{"c": "0"}, all)
		synctest.Wait()
		require.Empty(t, placed)
		require.Equal(t, "0,2-3", m.Move("shared", "c").CPUs)
		m.Placed("shared", map[string]string{"c": "0,2-3"}, none)
		require.NoError(t, <-placed)
	})
}

func TestContainersOfAnEarlierProcessCountEverywhere(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := newPlacing(t, dir)
		admitOwn(t, m)
		require.ErrorContains(t, <-place(t.Context(), m), "the container runtime has not listed its containers yet")
		placed := place(t.Context(), m)
		m.Placed("read", map[string]string{"c": "0"}, none)
		m.Adopt([]types.UID{"read", "orphan"})
		synctest.Wait()
		require.Empty(t, placed)
		m.Placed("orphan", nil, none)
		require.NoError(t, <-placed)
	})
}

func TestPodsThatNoWorkerReadsDoNotBlockForEver(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := newPlacing(t, dir)
		admitOwn(t, m)
		m.Adopt([]types.UID{"unread"})
		placed := place(t.Context(), m)
		require.Empty(t, placed)
		require.NoError(t, <-placed, "the Pod may be the API server, without which no worker reads the others")
		m.Retain(func(types.UID) bool { return true })
		require.ErrorContains(t, <-place(t.Context(), m), "the containers of Pod unread, which may be on them, have not been read yet")
	})
}

// TestDecisionsThatAreLostAreMadeAgain: the file is damaged, or someone has removed it, while a container has CPUs of its own.
func TestDecisionsThatAreLostAreMadeAgain(t *testing.T) {
	dir := t.TempDir()
	m := newPlacing(t, dir)
	admitOwn(t, m)
	readmit := func(m *resources.Manager, uid types.UID) lifecycle.PodAdmitResult {
		return m.Readmit(exclusivePod(uid))
	}
	m = newPlacing(t, dir)
	require.True(t, readmit(m, "own").Admit)
	require.Equal(t, "1", m.Pin("own", "c").CPUs)
	require.True(t, readmit(m, "unknown").Admit)
	require.False(t, m.HasExclusiveCPUs("unknown"), "nothing is lost, so this Pod has none")

	require.NoError(t, os.WriteFile(filepath.Join(dir, cpus.StateFile), nil, 0o600))
	m = newPlacing(t, dir)
	require.False(t, m.HasExclusiveCPUs("own"))
	for _, uid := range []types.UID{"first", "own", "third"} {
		require.True(t, readmit(m, uid).Admit)
		require.True(t, m.Pin(uid, "c").Exclusive)
	}
	require.Equal(t, "2", m.Pin("own", "c").CPUs, "it moves there")
	refused := readmit(m, "fourth")
	require.False(t, refused.Admit)
	require.Contains(t, refused.Message, "not enough CPUs are free")

	require.NoError(t, os.WriteFile(filepath.Join(dir, cpus.StateFile), []byte(`{"policyName":"none","defaultCpuSet":"","checksum":0}`), 0o600))
	m = unopened(t, dir)
	require.ErrorContains(t, m.Open(), "configured policy")
	require.True(t, readmit(m, "own").Admit, "a kubelet that does not start ends no Pod")
}
