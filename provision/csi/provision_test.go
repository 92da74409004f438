package csi_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

const zone = "topology.example.com/zone"

func secret(namespace, name, value string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string][]byte{"password": []byte(value)},
	}
}

func testNode(name, inZone string) (*corev1.Node, *storagev1.CSINode) {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-of-" + name), Labels: map[string]string{zone: inZone},
		}},
		&storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
				{Name: "other.example.com", TopologyKeys: []string{"other"}},
				{Name: driverName, NodeID: name, TopologyKeys: []string{zone}},
			}},
		}
}

func options(change ...func(*provision.VolumeOptions)) provision.VolumeOptions {
	node, _ := testNode("node-1", "a")
	o := provision.VolumeOptions{
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PVName:                        "pvc-1", MountOptions: []string{"noatime"}, SelectedNode: node,
		Parameters: map[string]string{},
		PVC: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Mi")}},
			},
		},
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

// cluster has two nodes of the driver in the zones a and b.
func cluster(objects ...runtime.Object) *fake.Clientset {
	nodeA, csiA := testNode("node-1", "a")
	nodeB, csiB := testNode("node-2", "b")
	return fake.NewClientset(append([]runtime.Object{nodeA, csiA, nodeB, csiB}, objects...)...)
}

// started makes a provisioner, starts it, and stops it at the test's end.
func started(t *testing.T, deps csi.Deps, config csi.Config) *csi.Provisioner {
	t.Helper()
	if config.Name == "" {
		config.Name = driverName
	}
	if deps.Logger == nil {
		deps.Logger = testlog.New(t, slog.DiscardHandler)
	}
	p, err := csi.New(deps, config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return p
}

func withDriver(t *testing.T, f *fakeDriver, config csi.Config, objects ...runtime.Object) *csi.Provisioner {
	t.Helper()
	config.Socket = socketPath(t)
	f.serve(t, config.Socket)
	return started(t, csi.Deps{Client: cluster(objects...)}, config)
}

// withSecrets has a class that names a secret for everything.
func withSecrets(o *provision.VolumeOptions) {
	o.PVC.Annotations = map[string]string{"team": "blue"}
	o.Parameters = map[string]string{
		"kind":                      "fast",
		"csi.storage.k8s.io/fstype": "xfs",
		"csi.storage.k8s.io/provisioner-secret-name":             "make-${pvc.namespace}",
		"csi.storage.k8s.io/provisioner-secret-namespace":        "vault",
		"csi.storage.k8s.io/node-stage-secret-name":              "${pvc.annotations['team']}-${pvc.name}",
		"csi.storage.k8s.io/node-stage-secret-namespace":         "${pvc.namespace}",
		"csi.storage.k8s.io/node-publish-secret-name":            "publish",
		"csi.storage.k8s.io/node-publish-secret-namespace":       "ns",
		"csi.storage.k8s.io/controller-publish-secret-name":      "attach",
		"csi.storage.k8s.io/controller-publish-secret-namespace": "ns",
		"csi.storage.k8s.io/controller-expand-secret-name":       "expand-${pv.name}",
		"csi.storage.k8s.io/controller-expand-secret-namespace":  "ns",
		"csi.storage.k8s.io/node-expand-secret-name":             "grow",
		"csi.storage.k8s.io/node-expand-secret-namespace":        "ns",
	}
}

func TestRequestAndVolume(t *testing.T) {
	f := newFakeDriver()
	f.create = func(_ context.Context, req *csiapi.CreateVolumeRequest) (*csiapi.Volume, error) {
		return &csiapi.Volume{
			VolumeId: "handle", CapacityBytes: 16 << 20, VolumeContext: map[string]string{"made": "well"},
			AccessibleTopology: req.GetAccessibilityRequirements().GetPreferred()[:1],
		}, nil
	}
	p := withDriver(t, f, csi.Config{ExtraCreateMetadata: true}, secret("vault", "make-ns", "s3cret"))
	pv, state, err := p.ProvisionContext(t.Context(), options(withSecrets))
	require.NoError(t, err)
	require.Equal(t, provision.ProvisioningFinished, state)

	places := []*csiapi.Topology{{Segments: map[string]string{zone: "a"}}, {Segments: map[string]string{zone: "b"}}}
	require.Empty(t, cmp.Diff(&csiapi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csiapi.CapacityRange{RequiredBytes: 8 << 20},
		VolumeCapabilities: []*csiapi.VolumeCapability{{
			AccessMode: &csiapi.VolumeCapability_AccessMode{
				Mode: csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csiapi.VolumeCapability_Mount{Mount: &csiapi.VolumeCapability_MountVolume{
				FsType: "xfs", MountFlags: []string{"noatime"}}},
		}},
		Parameters: map[string]string{
			"kind": "fast", "csi.storage.k8s.io/pvc/name": "claim", "csi.storage.k8s.io/pvc/namespace": "ns",
			"csi.storage.k8s.io/pv/name": "pvc-1",
		},
		Secrets:                   map[string]string{"password": "s3cret"},
		AccessibilityRequirements: &csiapi.TopologyRequirement{Requisite: places, Preferred: places},
	}, f.last(), protocmp.Transform()))

	ref := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "ns", Name: name}
	}
	require.Empty(t, cmp.Diff(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: map[string]string{
			"volume.kubernetes.io/provisioner-deletion-secret-name":      "make-ns",
			"volume.kubernetes.io/provisioner-deletion-secret-namespace": "vault",
		}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")},
			VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
			MountOptions:                  []string{"noatime"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: "handle", FSType: "xfs",
				VolumeAttributes:   map[string]string{"made": "well"},
				NodeStageSecretRef: ref("blue-claim"), NodePublishSecretRef: ref("publish"),
				ControllerPublishSecretRef: ref("attach"), ControllerExpandSecretRef: ref("expand-pvc-1"),
				NodeExpandSecretRef: ref("grow"),
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
				}},
			}},
		},
	}, pv))

	require.NoError(t, p.DeleteContext(t.Context(), pv))
	require.Empty(t, cmp.Diff([]*csiapi.DeleteVolumeRequest{{
		VolumeId: "handle", Secrets: map[string]string{"password": "s3cret"},
	}}, f.deleted, protocmp.Transform()))
}

func TestAccessModesAndBlock(t *testing.T) {
	all := []corev1.PersistentVolumeAccessMode{
		corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadOnlyMany, corev1.ReadWriteMany,
	}
	for name, test := range map[string]struct {
		able []csiapi.ControllerServiceCapability_RPC_Type
		want []csiapi.VolumeCapability_AccessMode_Mode
	}{
		"old": {nil, []csiapi.VolumeCapability_AccessMode_Mode{
			csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
			csiapi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
			csiapi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		}},
		"new": {
			[]csiapi.ControllerServiceCapability_RPC_Type{
				csiapi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
			[]csiapi.VolumeCapability_AccessMode_Mode{
				csiapi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
				csiapi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
				csiapi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
				csiapi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDriver()
			f.rpcs = append(f.rpcs, test.able...)
			p := withDriver(t, f, csi.Config{DefaultFSType: "ext4"})
			pv, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
				o.PVC.Spec.AccessModes = all
				o.PVC.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
				o.Parameters["csi.storage.k8s.io/fstype"] = "xfs" // the class serves filesystem volumes, too
			}))
			require.NoError(t, err)
			require.Equal(t, corev1.PersistentVolumeBlock, *pv.Spec.VolumeMode)
			require.Empty(t, pv.Spec.CSI.FSType)
			var got []csiapi.VolumeCapability_AccessMode_Mode
			for _, c := range f.last().GetVolumeCapabilities() {
				require.NotNil(t, c.GetBlock())
				got = append(got, c.GetAccessMode().GetMode())
			}
			require.Equal(t, test.want, got)
		})
	}
}

// wrongSources are claims with volumes that cannot be cloned, each for the reason that is its name, and a class of
// attributes of another driver.
func wrongSources() []runtime.Object {
	gone := metav1.Now()
	bound := func(name string, change func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)) []runtime.Object {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "u"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		}
		volume := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef: &corev1.ObjectReference{UID: "u"},
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Mi")},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}},
			},
		}
		change(claim, volume)
		return []runtime.Object{claim, volume}
	}
	var objects []runtime.Object
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume){
		"leaving": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.DeletionTimestamp, c.Finalizers = &gone, []string{"f/f"}
		},
		"unbound": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.Status.Phase = "" },
		"block": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		},
		"foreign": func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "x" },
		"stolen":  func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "x" },
		"large": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("9Mi")}
		},
	} {
		objects = append(objects, bound(name, change)...)
	}
	return append(objects, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "others"}, DriverName: "x"})
}

func TestRefusedClaimsNameTheField(t *testing.T) {
	objects := wrongSources()
	clone := func(name string) func(*provision.VolumeOptions) {
		return func(o *provision.VolumeOptions) {
			o.PVC.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: name}
		}
	}
	parameter := func(pairs ...string) func(*provision.VolumeOptions) {
		return func(o *provision.VolumeOptions) {
			for i := 0; i < len(pairs); i += 2 {
				o.Parameters[pairs[i]] = pairs[i+1]
			}
		}
	}
	name, namespace := "csi.storage.k8s.io/provisioner-secret-name", "csi.storage.k8s.io/provisioner-secret-namespace"
	for label, test := range map[string]struct {
		change func(*provision.VolumeOptions)
		text   string
	}{
		"selector": {func(o *provision.VolumeOptions) {
			o.PVC.Spec.Selector = &metav1.LabelSelector{}
		}, "spec.selector"},
		"reserved":        {parameter("csi.storage.k8s.io/nonsense", "1"), "csi.storage.k8s.io/nonsense"},
		"two fstypes":     {parameter("fstype", "xfs", "csi.storage.k8s.io/fstype", "xfs"), "are the same"},
		"half a secret":   {parameter(name, "x"), namespace},
		"claim's own":     {parameter(name, "x", namespace, "${pvc.name}"), "${pvc.name}"},
		"annotation":      {parameter(name, "${pvc.annotations['a']}", namespace, "ns"), "unknown token"},
		"hostile secret":  {parameter(name, "../x", namespace, "ns"), name},
		"missing secret":  {parameter(name, "x", namespace, "ns"), `"ns/x"`},
		"clone leaving":   {clone("leaving"), "being deleted"},
		"clone unbound":   {clone("unbound"), "not bound"},
		"clone mode":      {clone("block"), "volumeMode Block"},
		"clone foreign":   {clone("foreign"), "not of driver"},
		"clone stolen":    {clone("stolen"), "not bound to claim"},
		"clone too small": {clone("large"), "spec.resources.requests.storage: 8Mi"},
		"clone missing":   {clone("none"), "spec.dataSource"},
		"snapshot off": {func(o *provision.VolumeOptions) {
			o.PVC.Spec.DataSource = &corev1.TypedLocalObjectReference{
				APIGroup: ptr.To("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "s"}
		}, "not enabled"},
		"other namespace": {func(o *provision.VolumeOptions) {
			o.PVC.Spec.DataSourceRef = &corev1.TypedObjectReference{
				Kind: "PersistentVolumeClaim", Name: "x", Namespace: ptr.To("elsewhere")}
		}, "spec.dataSourceRef.namespace"},
		"attributes": {func(o *provision.VolumeOptions) {
			o.PVC.Spec.VolumeAttributesClassName = ptr.To("others")
		}, "spec.volumeAttributesClassName"},
		"node without label": {func(o *provision.VolumeOptions) { o.SelectedNode.Labels = nil }, zone},
		"too many places": {func(o *provision.VolumeOptions) {
			var term corev1.TopologySelectorTerm
			for _, key := range strings.Split("abcdefghijklm", "") {
				term.MatchLabelExpressions = append(term.MatchLabelExpressions,
					corev1.TopologySelectorLabelRequirement{Key: key, Values: strings.Split("0123456789", "")})
			}
			o.AllowedTopologies = []corev1.TopologySelectorTerm{term}
		}, "allowedTopologies"},
		"node not allowed": {func(o *provision.VolumeOptions) {
			o.AllowedTopologies = []corev1.TopologySelectorTerm{{
				MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: []string{"b", "c"}}}}}
		}, "allowedTopologies"},
	} {
		t.Run(label, func(t *testing.T) {
			f := newFakeDriver()
			p := withDriver(t, f, csi.Config{}, objects...)
			_, state, err := p.ProvisionContext(t.Context(), options(test.change))
			require.ErrorContains(t, err, test.text)
			require.Equal(t, provision.ProvisioningNoChange, state)
			require.Nil(t, f.last(), "the driver was not asked")
			// What the claim and its class say does not change by itself; what they name may come.
			require.Equal(t, slices.Contains([]string{"selector", "reserved", "two fstypes", "half a secret", "claim's own",
				"annotation", "hostile secret"}, label), errors.As(err, new(*provision.InfeasibleError)))
		})
	}
}

func TestPopulatorsClaimsAreIgnored(t *testing.T) {
	p := withDriver(t, newFakeDriver(), csi.Config{})
	_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
		o.PVC.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To("x.example.com"), Kind: "X", Name: "x"}
	}))
	var ignored *provision.IgnoredError
	require.ErrorAs(t, err, &ignored)
}
