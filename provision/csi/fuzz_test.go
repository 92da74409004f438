package csi

import (
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/provision"
)

// FuzzCreatedVolume has a driver respond with arbitrary bytes: it is refused, or a PersistentVolume of the driver that has as much as was
// requested.
func FuzzCreatedVolume(f *testing.F) {
	add := func(response *csiapi.CreateVolumeResponse, topology bool) {
		data, err := proto.Marshal(response)
		require.NoError(f, err)
		f.Add(data, topology)
	}
	add(&csiapi.CreateVolumeResponse{Volume: &csiapi.Volume{VolumeId: "v", CapacityBytes: 8 << 20, VolumeContext: map[string]string{"a": "b"},
		AccessibleTopology: []*csiapi.Topology{{Segments: map[string]string{"zone": "a"}}, {}}}}, true)
	add(&csiapi.CreateVolumeResponse{Volume: &csiapi.Volume{VolumeId: "v", CapacityBytes: -1}}, false)
	add(&csiapi.CreateVolumeResponse{Volume: &csiapi.Volume{CapacityBytes: 1 << 62}}, true)
	f.Fuzz(func(t *testing.T, data []byte, topology bool) {
		response := &csiapi.CreateVolumeResponse{}
		if proto.Unmarshal(data, response) != nil {
			return
		}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default"}}
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Mi")}
		one := &plan{options: provision.VolumeOptions{PVC: claim, PVName: "pv"}, size: 8 << 20, topology: topology, request: &csiapi.CreateVolumeRequest{}}
		if one.validate(response.GetVolume()) != nil {
			return
		}
		made := one.volume("csi.example.com", response.GetVolume())
		require.NotEmpty(t, made.Spec.CSI.VolumeHandle)
		capacity := made.Spec.Capacity[corev1.ResourceStorage]
		require.GreaterOrEqual(t, capacity.Value(), int64(8<<20))
		if affinity := made.Spec.NodeAffinity; affinity != nil {
			require.True(t, topology)
			for _, term := range affinity.Required.NodeSelectorTerms {
				require.NotEmpty(t, term.MatchExpressions, "a term without expressions matches no node")
			}
		}
	})
}

// FuzzSecretTemplate expands the name of a Secret that a class gives, with what the author of a claim may write: the namespace is never the
// author's choice, and both are names.
func FuzzSecretTemplate(f *testing.F) {
	f.Add("${pvc.annotations['team']}-${pvc.name}", "${pvc.namespace}", "data", "blue")
	f.Add("a", "${pvc.annotations['team']}", "data", "kube-system")
	f.Add("${pvc.name}", "$pvc.namespace", "${pv.name}", "${pvc.namespace}")
	f.Add("${", "$$", "x", "y")
	f.Fuzz(func(t *testing.T, name, namespace, claimName, annotation string) {
		refOf := func(claimName, annotation string) (*corev1.SecretReference, error) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
				Name: claimName, Namespace: "default", Annotations: map[string]string{"team": annotation},
			}}
			refs, err := resolveSecrets(map[string]string{
				"csi.storage.k8s.io/provisioner-secret-name": name, "csi.storage.k8s.io/provisioner-secret-namespace": namespace,
			}, "pv", claim)
			return refs[secretProvision], err
		}
		ref, err := refOf(claimName, annotation)
		if err != nil {
			return
		}
		require.Empty(t, validation.IsDNS1123Label(ref.Namespace))
		require.Empty(t, validation.IsDNS1123Subdomain(ref.Name))
		if other, err := refOf("another", "another"); err == nil {
			require.Equal(t, other.Namespace, ref.Namespace)
		}
	})
}
