package claims

import (
	"context"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	testclock "k8s.io/utils/clock/testing"
)

// rawDriver responds with arbitrary bytes.
type rawDriver struct {
	draapi.DRAPluginClient
	response []byte
}

func (d *rawDriver) NodePrepareResources(context.Context, *draapi.NodePrepareResourcesRequest, ...grpc.CallOption) (
	*draapi.NodePrepareResourcesResponse, error,
) {
	out := &draapi.NodePrepareResourcesResponse{}
	return out, proto.Unmarshal(d.response, out)
}

// FuzzDriver has a DRA driver prepare a claim and report the health of its devices with arbitrary bytes: an error names the claim or the driver,
// what is prepared is read from the state file as it was written, and a health fits into a Pod's status.
func FuzzDriver(f *testing.F) {
	encode := func(message proto.Message) []byte {
		data, err := proto.Marshal(message)
		require.NoError(f, err)
		return data
	}
	device := &draapi.Device{RequestNames: []string{"gpu"}, PoolName: "pool", DeviceName: "a", CdiDeviceIds: []string{"example.com/gpu=0"}}
	report := &healthapi.NodeWatchResourcesResponse{Devices: []*healthapi.DeviceHealth{
		{Device: &healthapi.DeviceIdentifier{PoolName: "pool", DeviceName: "a"}, Health: healthapi.HealthStatus_UNHEALTHY, HealthCheckTimeoutSeconds: 1 << 62,
			Message: string(make([]byte, 1<<11))}, {}, {HealthCheckTimeoutSeconds: -1},
	}}
	for _, result := range []*draapi.NodePrepareResourceResponse{{Devices: []*draapi.Device{device, {}}}, {Error: "full"}} {
		f.Add(encode(&draapi.NodePrepareResourcesResponse{Claims: map[string]*draapi.NodePrepareResourceResponse{"uid": result}}), encode(report))
	}
	f.Add([]byte{}, []byte{0xff})
	f.Fuzz(func(t *testing.T, response, reported []byte) {
		clock := testclock.NewFakeClock(time.Unix(1700000000, 0))
		m, err := New(Deps{Client: fake.NewClientset(), OnHealthChanged: func(types.UID) {}, Clock: clock}, Config{Root: t.TempDir(), NodeName: "n"})
		require.NoError(t, err)
		require.NoError(t, m.Open())
		w := &healthWatch{}
		m.drivers["d"] = &driver{sockets: []*connection{{client: &rawDriver{response: response}}}, watch: w}
		c := &claim{ClaimUID: "uid", ClaimName: "data", Namespace: "ns", PodUIDs: sets.New("pod"), DriverState: map[string]driverState{}}
		devices, err := m.ask(t.Context(), "d", c)
		if err != nil {
			require.ErrorContains(t, err, "NodePrepareResources")
			return
		}
		c.DriverState["d"] = driverState{Devices: devices}
		m.claims[key{c.Namespace, c.ClaimName}] = c
		require.NoError(t, m.save())
		held, err := readState(m.stateFile())
		require.NoError(t, err)
		require.Equal(t, devices, held[key{c.Namespace, c.ClaimName}].DriverState["d"].Devices)

		report := &healthapi.NodeWatchResourcesResponse{}
		if proto.Unmarshal(reported, report) != nil {
			return
		}
		for _, uid := range m.replaceHealth(t.Context(), "d", w, report.Devices, false) {
			require.EqualValues(t, "pod", uid)
		}
		require.LessOrEqual(t, len(w.devices), len(report.Devices))
		for _, h := range w.devices {
			require.LessOrEqual(t, len(h.message), corev1.ResourceHealthMessageMaxLength)
			require.True(t, utf8.ValidString(h.message))
			require.True(t, h.until.After(clock.Now()))
			require.LessOrEqual(t, h.until.Sub(clock.Now()), maxHealthTimeout)
		}
		if w.expiry != nil {
			w.expiry.Stop()
		}
	})
}
