package csi_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

func TestConfigNamesTheField(t *testing.T) {
	for field, config := range map[string]csi.Config{
		"Name":    {Socket: "/x"},
		"Socket":  {Name: "x", Socket: "x"},
		"Timeout": {Name: "x", Socket: "/x", Timeout: -1},
	} {
		_, err := csi.New(csi.Deps{Client: cluster()}, config)
		require.ErrorContains(t, err, field)
	}
	_, err := csi.New(csi.Deps{}, csi.Config{Name: "x", Socket: "/x"})
	require.ErrorContains(t, err, "Client")
}

func TestUnreachableDriverChangesNothing(t *testing.T) {
	p := started(t, csi.Deps{Client: cluster()}, csi.Config{Socket: socketPath(t), Timeout: 50 * time.Millisecond})
	_, state, err := p.ProvisionContext(t.Context(), options())
	require.Error(t, err)
	require.Equal(t, provision.ProvisioningNoChange, state)
}

func TestACallWaitsForItsDriver(t *testing.T) {
	socket := socketPath(t)
	p := started(t, csi.Deps{Client: cluster()}, csi.Config{Socket: socket})
	done := make(chan error, 1)
	go func() {
		_, _, err := p.ProvisionContext(t.Context(), options())
		done <- err
	}()
	f := newFakeDriver()
	f.serve(t, socket)
	require.NoError(t, <-done)
	require.NotNil(t, f.last())
}

func TestReconnectedDriverIsProbedAgain(t *testing.T) {
	socket := socketPath(t)
	old := newFakeDriver()
	old.noTopology = true
	stop := old.serve(t, socket)
	p := started(t, csi.Deps{Client: cluster()}, csi.Config{Socket: socket})
	for range 3 {
		_, _, err := p.ProvisionContext(t.Context(), options())
		require.NoError(t, err)
	}
	require.Nil(t, old.last().GetAccessibilityRequirements())
	require.LessOrEqual(t, old.infoCallCount(), 2, "once for the greeting, once for the first call")

	stop()
	renewed := newFakeDriver()
	renewed.serve(t, socket)
	// Calls may still meet the end of the old connection, or have been planned before it.
	for n := 2; renewed.last().GetAccessibilityRequirements() == nil; n++ {
		_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
			o.PVName = fmt.Sprint("pvc-", n)
		}))
		if err != nil {
			require.Equal(t, codes.Unavailable, status.Code(err))
		}
	}
}

func TestAnotherDriverOnTheSocket(t *testing.T) {
	socket := socketPath(t)
	f := newFakeDriver()
	f.name = "other.example.com"
	f.serve(t, socket)
	p, err := csi.New(csi.Deps{Client: cluster()}, csi.Config{Name: driverName, Socket: socket})
	require.NoError(t, err)
	require.ErrorContains(t, p.Start(t.Context()), "other.example.com")
	_, state, err := p.ProvisionContext(t.Context(), options())
	require.ErrorContains(t, err, "stopped")
	require.Equal(t, provision.ProvisioningNoChange, state)
}

func TestDriversThatCannot(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*fakeDriver)
		text   string
	}{
		"not ready":      {func(f *fakeDriver) { f.unready = true }, "not ready"},
		"create volumes": {func(f *fakeDriver) { f.rpcs = nil }, "does not support creating volumes"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDriver()
			test.change(f)
			p := withDriver(t, f, csi.Config{})
			_, state, err := p.ProvisionContext(t.Context(), options())
			require.ErrorContains(t, err, test.text)
			require.Equal(t, provision.ProvisioningNoChange, state)
		})
	}
}

func TestPlainMethodsNeedStart(t *testing.T) {
	p, err := csi.New(csi.Deps{Client: cluster()}, csi.Config{Name: driverName, Socket: socketPath(t)})
	require.NoError(t, err)
	_, err = p.Provision(options())
	require.ErrorContains(t, err, "is not started")
	require.ErrorContains(t, p.Delete(&corev1.PersistentVolume{}), "is not started")
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
			for _, pv := range []string{"pvc-1", "pvc-2", "pvc-3", "pvc-4", "pvc-5", "pvc-6", "pvc-7", "pvc-8"} {
				_, _, err := p.ProvisionContext(context.Background(), options(func(o *provision.VolumeOptions) {
					o.SelectedNode, o.AllowedTopologies, o.PVName = nil, test.allowed, pv
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
