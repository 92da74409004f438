package pluginmanager

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// rawPlugin describes itself with arbitrary bytes, and notes the result of its registration.
type rawPlugin struct {
	registerapi.RegistrationClient
	info   []byte
	status *registerapi.RegistrationStatus
}

func (p *rawPlugin) GetInfo(context.Context, *registerapi.InfoRequest, ...grpc.CallOption) (*registerapi.PluginInfo, error) {
	out := &registerapi.PluginInfo{}
	return out, proto.Unmarshal(p.info, out)
}

func (p *rawPlugin) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus, _ ...grpc.CallOption) (
	*registerapi.RegistrationStatusResponse, error,
) {
	p.status = status
	return &registerapi.RegistrationStatusResponse{}, nil
}

// handler accepts each plugin.
type handler struct{ accepted []Plugin }

func (h *handler) Register(_ context.Context, plugin Plugin) error {
	h.accepted = append(h.accepted, plugin)
	return nil
}

func (h *handler) Deregister(context.Context, Plugin) error { return nil }

// FuzzInfo registers a plugin that describes itself with arbitrary bytes: one with a name and a known type is passed to the handler of its type,
// another one is notified of why it is rejected, and not asked again.
func FuzzInfo(f *testing.F) {
	for _, info := range []*registerapi.PluginInfo{
		{Type: registerapi.CSIPlugin, Name: "csi.example.com", Endpoint: "/csi.sock", SupportedVersions: []string{"1.0.0"}},
		{Type: registerapi.CSIPlugin}, {Type: "x", Name: "y"}, {},
	} {
		data, err := proto.Marshal(info)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		h := &handler{}
		m, err := New(Deps{Handlers: map[string]Handler{registerapi.CSIPlugin: h}}, Config{Dir: t.TempDir()})
		require.NoError(t, err)
		raw := &rawPlugin{info: data}
		plugin, err := m.getInfo(t.Context(), raw)
		if err != nil {
			require.ErrorContains(t, err, "get plugin info")
			return
		}
		socket := identity{inode: 7}
		require.NoError(t, m.registerAndNotify(t.Context(), raw, "a.sock", &registration{socket: socket, plugin: plugin}))
		require.True(t, m.registered["a.sock"].isOf(socket, true))
		if plugin.Type == registerapi.CSIPlugin && plugin.Name != "" {
			require.Equal(t, []Plugin{plugin}, h.accepted)
			require.True(t, raw.status.PluginRegistered)
			return
		}
		require.Empty(t, h.accepted)
		require.Empty(t, m.registered["a.sock"].plugin.Name)
		require.False(t, raw.status.PluginRegistered)
		require.NotEmpty(t, raw.status.Error)
	})
}
