package csi_test

import (
	"context"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

// values returns the values of the key in the topologies, "" where one lacks it.
func values(key string, list []*csiapi.Topology) (found []string) {
	for _, topology := range list {
		found = append(found, topology.GetSegments()[key])
	}
	return found
}

// onNodes returns a client with nodes of the driver in the zones, of which those in racks report that key, too.
func onNodes(racks map[string]string, zones ...string) *fake.Clientset {
	client := fake.NewClientset()
	for _, in := range zones {
		node, csiNode := testNode("node-"+in, in)
		if rack, ok := racks[in]; ok {
			node.Labels["rack"] = rack
			csiNode.Spec.Drivers[1].TopologyKeys = []string{zone, "rack"}
		}
		for _, err := range []error{client.Tracker().Add(node), client.Tracker().Add(csiNode)} {
			if err != nil {
				panic(err)
			}
		}
	}
	return client
}

func provisionerOn(t *testing.T, client *fake.Clientset, config csi.Config) (*csi.Provisioner, *fakeDriver) {
	t.Helper()
	f := newFakeDriver()
	config.Socket = socketPath(t)
	f.serve(t, config.Socket)
	return started(t, csi.Deps{Client: client}, config), f
}

// All claims of a StatefulSet's Pod prefer the same zone, without which no node could run the Pod; the next Pod's prefer the next.
// The zones are those that external-provisioner chooses.
func TestClaimsOfOnePodPreferOneZone(t *testing.T) {
	p, f := provisionerOn(t, onNodes(nil, "a", "b", "c"), csi.Config{})
	preferred := func(claim string) string {
		_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
			o.SelectedNode, o.PVName, o.PVC.Name = nil, "pvc-"+claim, claim
		}))
		require.NoError(t, err)
		return f.last().GetAccessibilityRequirements().GetPreferred()[0].GetSegments()[zone]
	}
	found := map[string]bool{}
	for _, pod := range []string{"web-0", "web-1", "web-2"} {
		in := preferred("data-" + pod)
		require.Equal(t, in, preferred("logs-"+pod))
		found[in] = true
	}
	require.Len(t, found, 3)
	require.Equal(t, "a", preferred("data-web-0"))
	require.Equal(t, "c", preferred("claim"))
}

// The selected node's topology is preferred. The others are for volumes that span several topologies.
func TestTopologiesForASelectedNode(t *testing.T) {
	allow := func(zones ...string) []corev1.TopologySelectorTerm {
		return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: zones}}}}
	}
	for name, test := range map[string]struct {
		config               csi.Config
		allowed              []corev1.TopologySelectorTerm
		requisite, preferred []string
	}{
		"all":          {csi.Config{}, nil, []string{"a", "b", "c"}, []string{"b", "c", "a"}},
		"allowed":      {csi.Config{}, allow("d", "b"), []string{"b", "d"}, []string{"b", "d"}},
		"strict":       {csi.Config{StrictTopology: true}, nil, []string{"b"}, []string{"b"}},
		"strict class": {csi.Config{StrictTopology: true}, allow("d", "b"), []string{"b"}, []string{"b"}},
		"one node's":   {csi.Config{NodeName: "node-b"}, nil, []string{"b"}, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, f := provisionerOn(t, onNodes(nil, "a", "b", "c"), test.config)
			_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
				o.SelectedNode, _ = testNode("node-b", "b")
				o.AllowedTopologies = test.allowed
			}))
			require.NoError(t, err)
			got := f.last().GetAccessibilityRequirements()
			require.Equal(t, test.requisite, values(zone, got.GetRequisite()))
			require.Equal(t, test.preferred, values(zone, got.GetPreferred()))
		})
	}
}

// Where the driver reports more keys on some nodes, each topology is one of the keys of some node, and never of labels that the
// driver does not report.
func TestNodesWithOtherTopologyKeys(t *testing.T) {
	p, f := provisionerOn(t, onNodes(map[string]string{"b": "1", "c": "2"}, "a", "b", "c"), csi.Config{})
	provisioned := func(change func(*provision.VolumeOptions)) []*csiapi.Topology {
		_, _, err := p.ProvisionContext(t.Context(), options(change))
		require.NoError(t, err)
		return f.last().GetAccessibilityRequirements().GetRequisite()
	}
	immediate := provisioned(func(o *provision.VolumeOptions) { o.SelectedNode = nil })
	require.Equal(t, []string{"a", "b", "c", "b", "c"}, values(zone, immediate))
	require.Equal(t, []string{"", "", "", "1", "2"}, values("rack", immediate))
	inRack := provisioned(func(o *provision.VolumeOptions) {
		o.PVName = "pvc-2"
		o.SelectedNode, _ = testNode("node-b", "b")
		o.SelectedNode.Labels["rack"] = "1"
	})
	require.Equal(t, []string{"b", "c"}, values(zone, inRack))
	require.Equal(t, []string{"1", "2"}, values("rack", inRack))
}

// A claim waits until the driver has a node: a volume that is made before may be where no node will be.
func TestDriverWithoutNodesWaits(t *testing.T) {
	immediate := func(o *provision.VolumeOptions) { o.SelectedNode = nil }
	p, f := provisionerOn(t, onNodes(nil), csi.Config{})
	_, state, err := p.ProvisionContext(t.Context(), options(immediate))
	require.ErrorContains(t, err, "has no node yet")
	require.Equal(t, provision.ProvisioningNoChange, state)

	node, csiNode := testNode("node-a", "a")
	csiNode.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driverName, NodeID: "node-a"}}
	p, f = provisionerOn(t, fake.NewClientset(node, csiNode), csi.Config{})
	_, _, err = p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) { o.SelectedNode = node }))
	require.ErrorContains(t, err, "reports no topology")
	require.Nil(t, f.last())

	p, f = provisionerOn(t, fake.NewClientset(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}), csi.Config{})
	f.noTopology = true
	_, _, err = p.ProvisionContext(t.Context(), options(immediate))
	require.NoError(t, err, "a driver without topology needs no node")
}

// No node has the labels of a driver that reports a topology of a volume, and not that it has topologies: with them as the node affinity
// no node could run the Pod.
func TestTopologyOfADriverWithoutTopology(t *testing.T) {
	f := newFakeDriver()
	f.noTopology = true
	f.create = func(context.Context, *csiapi.CreateVolumeRequest) (*csiapi.Volume, error) {
		return &csiapi.Volume{VolumeId: "id", AccessibleTopology: []*csiapi.Topology{{Segments: map[string]string{zone: "a"}}}}, nil
	}
	pv, _, err := withDriver(t, f, csi.Config{}).ProvisionContext(t.Context(), options())
	require.NoError(t, err)
	require.Nil(t, pv.Spec.NodeAffinity)
}

// A claim that waits for the driver's first node is notified when the kubelet registers the driver.
func TestClaimFollowsTheFirstNode(t *testing.T) {
	node, csiNode := testNode("node-a", "a")
	drivers := csiNode.Spec.Drivers
	csiNode.Spec.Drivers = nil
	client := fake.NewClientset(node, csiNode)
	p, _ := provisionerOn(t, client, csi.Config{})
	ready := notifyProvisionable(t, p)
	watched := make(chan struct{}, 10)
	noteWatches(client, "csinodes", watched)
	claim := options(func(o *provision.VolumeOptions) { o.SelectedNode, o.PVC.UID = nil, "early" })
	provisionUntilWatched(t, p, claim, "no node yet", watched)
	csiNode = csiNode.DeepCopy()
	csiNode.Spec.Drivers = drivers
	_, err := client.StorageV1().CSINodes().Update(t.Context(), csiNode, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, types.UID("early"), <-ready)
	_, _, err = p.ProvisionContext(t.Context(), claim)
	require.NoError(t, err)
}

func TestImmediateClaimsGoWhereTheDriverIs(t *testing.T) {
	place := func(value string) map[string]string { return map[string]string{zone: value} }
	collect := func(list []*csiapi.Topology) (places []map[string]string) {
		for _, topology := range list {
			places = append(places, topology.GetSegments())
		}
		return places
	}
	term := func(key string, values ...string) corev1.TopologySelectorLabelRequirement {
		return corev1.TopologySelectorLabelRequirement{Key: key, Values: values}
	}
	for name, test := range map[string]struct {
		allowed []corev1.TopologySelectorTerm
		want    []map[string]string
	}{
		"everywhere": {nil, []map[string]string{place("a"), place("b")}},
		"allowed": {[]corev1.TopologySelectorTerm{
			{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{term(zone, "b", "b")}},
			{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{term(zone, "c"), term("rack", "1", "2")}},
			{},
		}, []map[string]string{{zone: "c", "rack": "1"}, {zone: "c", "rack": "2"}, place("b")}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDriver()
			p := withDriver(t, f, csi.Config{})
			firsts := map[string]bool{}
			for _, claim := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
				_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
					o.SelectedNode, o.AllowedTopologies, o.PVName, o.PVC.Name = nil, test.allowed, "pvc-"+claim, claim
				}))
				require.NoError(t, err)
				got := f.last().GetAccessibilityRequirements()
				require.ElementsMatch(t, test.want, collect(got.GetRequisite()))
				require.ElementsMatch(t, test.want, collect(got.GetPreferred()))
				firsts[got.GetPreferred()[0].String()] = true
			}
			require.Greater(t, len(firsts), 1, "claims are spread")
		})
	}
}

// A volume that an earlier process asked for, for a node that is gone by now, is found by its name alone: with another
// place in the request the driver would say that it has something else of that name, and for ever.
func TestVolumeOfADeletedNodeIsFound(t *testing.T) {
	for name, test := range map[string]struct {
		allowed []corev1.TopologySelectorTerm
		want    int
	}{
		"anywhere": {nil, 0},
		"where the class allows": {[]corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: zone, Values: []string{"a", "b"}}}}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDriver()
			p := withDriver(t, f, csi.Config{})
			_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
				o.SelectedNode = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-that-was"}}
				o.AllowedTopologies = test.allowed
			}))
			require.NoError(t, err)
			require.Len(t, f.last().GetAccessibilityRequirements().GetRequisite(), test.want)
		})
	}
}

// TestNodeWithoutACSINode has the scheduler select another node: this one may never get a CSINode.
func TestNodeWithoutACSINode(t *testing.T) {
	p, f := provisionerOn(t, onNodes(nil, "a"), csi.Config{})
	_, state, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
		o.SelectedNode, _ = testNode("node-b", "b")
	}))
	require.ErrorContains(t, err, `"node-b" not found`)
	require.Equal(t, provision.ProvisioningReschedule, state)
	require.Nil(t, f.last(), "the driver is not called")
}
