package csi_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

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
