package devices

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

// rawPlugin responds with arbitrary bytes, and notes which devices it is asked to allocate.
type rawPlugin struct {
	pluginapi.DevicePluginClient
	preferred, allocated []byte
	ids                  []string
}

func (p *rawPlugin) GetPreferredAllocation(context.Context, *pluginapi.PreferredAllocationRequest, ...grpc.CallOption) (
	*pluginapi.PreferredAllocationResponse, error,
) {
	out := &pluginapi.PreferredAllocationResponse{}
	return out, proto.Unmarshal(p.preferred, out)
}

func (p *rawPlugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest, _ ...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	p.ids = request.ContainerRequests[0].DevicesIds
	out := &pluginapi.AllocateResponse{}
	return out, proto.Unmarshal(p.allocated, out)
}

// FuzzPlugin has a device plugin list, prefer and allocate devices with arbitrary bytes: a container gets as many as it requests, each once and
// healthy, and the next process knows which.
func FuzzPlugin(f *testing.F) {
	list, preferred, allocated := pluginSeeds(f)
	f.Add(list, preferred, allocated, uint8(2), uint8(1))
	f.Add(list, []byte{0xff}, []byte{}, uint8(1), uint8(3))
	f.Add([]byte{}, preferred, allocated, uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, list, preferred, allocated []byte, n, mask uint8) {
		const name, uid = "example.com/gpu", "u"
		devices := &pluginapi.ListAndWatchResponse{}
		if proto.Unmarshal(list, devices) != nil {
			return
		}
		raw := &rawPlugin{preferred: preferred, allocated: allocated}
		m := managerOf(t, name, raw)
		m.update(name, m.pools[name].plugin, devices.Devices)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{name: *resource.NewQuantity(int64(n), resource.DecimalSI)}},
		}}}}
		c := &pod.Spec.Containers[0]
		m.Begin()
		for _, hint := range m.Hints(pod, c)[name] {
			require.Zero(t, hint.Nodes&^3, "the machine has two nodes")
		}
		if m.Allocate(pod, c, hints.Hint{Nodes: hints.Mask(mask & 3)}) != nil {
			return
		}
		options, err := m.Prepare(t.Context(), pod, c)
		if err != nil || options == nil {
			return
		}
		require.Len(t, raw.ids, int(n))
		seen := map[string]bool{}
		for _, id := range raw.ids {
			require.False(t, seen[id])
			seen[id] = true
			require.True(t, m.pools[name].devices[id].healthy)
		}
		paths := map[string]bool{}
		for _, mount := range options.Mounts {
			require.False(t, paths[mount.ContainerPath])
			paths[mount.ContainerPath] = true
		}
		given, _, err := readState(m.stateFile())
		require.NoError(t, err)
		require.ElementsMatch(t, raw.ids, given.get(uid, "app", name).devices.ids())
	})
}

// pluginSeeds are responses of a plugin, with what is odd in them.
func pluginSeeds(f *testing.F) (list, preferred, allocated []byte) {
	encode := func(message proto.Message) []byte {
		data, err := proto.Marshal(message)
		require.NoError(f, err)
		return data
	}
	on := func(nodes ...int64) *pluginapi.TopologyInfo {
		out := &pluginapi.TopologyInfo{}
		for _, id := range nodes {
			out.Nodes = append(out.Nodes, &pluginapi.NUMANode{ID: id})
		}
		return out
	}
	list = encode(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{
		{ID: "a", Health: pluginapi.Healthy, Topology: on(0, 0)}, {ID: "b", Health: pluginapi.Healthy, Topology: on(-1, 1, 1<<62)},
		{ID: "", Health: pluginapi.Healthy}, {ID: "c", Health: pluginapi.Unhealthy, Topology: on(64)}, {ID: "a"}, {ID: "d", Health: pluginapi.Healthy},
	}})
	preferred = encode(&pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
		{DeviceIDs: []string{"c", "d", "d", "x", "b"}},
	}})
	allocated = encode(&pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs: map[string]string{"A": "b"}, Mounts: []*pluginapi.Mount{{ContainerPath: "/a"}, {ContainerPath: "/a"}}, Devices: []*pluginapi.DeviceSpec{{}, {}},
	}}})
	return list, preferred, allocated
}

// managerOf returns a Manager that is connected to a plugin.
func managerOf(t *testing.T, name string, raw *rawPlugin) *Manager {
	t.Helper()
	m, err := New(Deps{NUMANodes: []int{0, 1}, Metrics: metrics.New(), OnCapacityChanged: func() {}, OnHealthChanged: func(types.UID) {}}, t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(m.dir, 0o700))
	require.NoError(t, m.Open())
	options := &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
	m.pools[name] = &pool{devices: map[string]device{}, plugin: &plugin{resource: name, client: raw, options: options}}
	return m
}
