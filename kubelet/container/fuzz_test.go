package container

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FuzzFromCRI converts arbitrary answers of a runtime: whatever is decoded becomes a status whose addresses are addresses.
func FuzzFromCRI(f *testing.F) {
	container, err := proto.Marshal(&runtimeapi.ContainerStatus{
		Id: "c1", Metadata: &runtimeapi.ContainerMetadata{Name: "app", Attempt: 3}, State: runtimeapi.ContainerState_CONTAINER_EXITED,
		CreatedAt: 1, StartedAt: 2, FinishedAt: 3, ExitCode: 137, Image: &runtimeapi.ImageSpec{Image: "a:1"},
		Annotations: map[string]string{HashAnnotation: "ff", PreStopAnnotation: `{"exec":{"command":["x"]}}`, PortsAnnotation: `[{"containerPort":1}]`},
	})
	require.NoError(f, err)
	sandbox, err := proto.Marshal(&runtimeapi.PodSandboxStatus{
		Id: "s1", State: runtimeapi.PodSandboxState_SANDBOX_READY, Labels: map[string]string{PodNameLabel: "p", PodNamespaceLabel: "ns"},
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1", AdditionalIps: []*runtimeapi.PodIP{{Ip: "fd00::1"}}},
	})
	require.NoError(f, err)
	f.Add(container, sandbox)
	f.Add([]byte{}, []byte{})
	f.Add(container[:len(container)/2], sandbox[:len(sandbox)/2])
	f.Fuzz(func(t *testing.T, container, sandbox []byte) {
		c, s := &runtimeapi.ContainerStatus{}, &runtimeapi.PodSandboxStatus{}
		if proto.Unmarshal(container, c) != nil || proto.Unmarshal(sandbox, s) != nil {
			return
		}
		status := FromCRI("uid", []*runtimeapi.PodSandboxStatus{s, nil}, []*runtimeapi.ContainerStatus{c, nil})
		require.Len(t, status.Containers, 1)
		require.Len(t, status.Sandboxes, 1)
		for _, ip := range status.IPs {
			_, err := netip.ParseAddr(ip)
			require.NoError(t, err)
		}
	})
}
