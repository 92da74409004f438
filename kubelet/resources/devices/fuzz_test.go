package devices

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// FuzzState reads an arbitrary state file, with a checksum that is right so that its content is reached: what is read is written and read again as
// it was. The response of a plugin in it has any bytes.
func FuzzState(f *testing.F) {
	response, err := proto.Marshal(&pluginapi.ContainerAllocateResponse{
		Envs: map[string]string{"A": "b"}, Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/a", HostPath: "/dev/b", Permissions: "rw"}},
	})
	require.NoError(f, err)
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"app","ResourceName":"example.com/gpu","DeviceIDs":{"-1":["a","b"],"0":null}}],`+
		`"RegisteredDevices":{"example.com/gpu":["a","b"],"other":null}},"Checksum":1}`), response, true)
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{},{}],"RegisteredDevices":null}}`), []byte{0xff}, true)
	f.Add([]byte(`null`), []byte{}, false)
	f.Fuzz(func(t *testing.T, content, response []byte, sum bool) {
		var c fileContent
		if sum && json.Unmarshal(content, &c) == nil {
			for i := range c.Data.PodDeviceEntries {
				c.Data.PodDeviceEntries[i].AllocResp = response
			}
			c.Checksum = c.Data.checksum()
			var err error
			content, err = json.Marshal(&c)
			require.NoError(t, err)
		}
		path := filepath.Join(t.TempDir(), StateFile)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		given, registered, err := readState(path)
		if err != nil {
			return
		}
		known := map[string][]string{}
		for _, name := range registered {
			known[name] = nil
		}
		require.NoError(t, writeState(path, given, known))
		again, names, err := readState(path)
		require.NoError(t, err)
		require.Equal(t, registered, names)
		require.Len(t, again, len(given))
		for uid, containers := range given {
			for container, resources := range containers {
				for resource, want := range resources {
					have := again.get(uid, container, resource)
					require.NotNil(t, have)
					require.Equal(t, want.devices.ids(), have.devices.ids())
					require.True(t, proto.Equal(want.response, have.response))
				}
			}
		}
	})
}
