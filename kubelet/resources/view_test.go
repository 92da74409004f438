package resources

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/resources/claims"
)

// TestDevicesOfClaimsAreListed: two claims have parts of one device: only the share distinguishes them.
func TestDevicesOfClaimsAreListed(t *testing.T) {
	got := dynamicResources([]claims.Device{
		{Claim: "a", Namespace: "ns", Driver: "d", Pool: "p", Device: "gpu", CDIDevices: []string{"d/gpu=0"}, ShareID: ptr.To(types.UID("first"))},
		{Claim: "a", Namespace: "ns", Driver: "d", Pool: "p", Device: "nic"},
		{Claim: "b", Namespace: "ns", Driver: "d", Pool: "p", Device: "gpu", ShareID: ptr.To(types.UID("second"))},
	})
	require.Equal(t, []*podresourcesapi.DynamicResource{
		{ClaimName: "a", ClaimNamespace: "ns", ClaimResources: []*podresourcesapi.ClaimResource{
			{DriverName: "d", PoolName: "p", DeviceName: "gpu", CdiDevices: []*podresourcesapi.CDIDevice{{Name: "d/gpu=0"}}, ShareId: ptr.To("first")},
			{DriverName: "d", PoolName: "p", DeviceName: "nic"},
		}},
		{ClaimName: "b", ClaimNamespace: "ns", ClaimResources: []*podresourcesapi.ClaimResource{
			{DriverName: "d", PoolName: "p", DeviceName: "gpu", ShareId: ptr.To("second")},
		}},
	}, got)
}
