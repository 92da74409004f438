package provision_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/freeport"
	"github.com/berth-dev/berth/provision"
)

type counts map[string]float64

// gather returns all counters and gauges as name{label="value"} -> value.
func gather(t *testing.T, from prometheus.Gatherer) counts {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	found := counts{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
			}
			key := strings.TrimPrefix(family.GetName(), "controller_") + "{" + strings.Join(labels, ",") + "}"
			switch {
			case metric.GetCounter() != nil:
				found[key] = metric.GetCounter().GetValue()
			case metric.GetGauge() != nil:
				found[key] = metric.GetGauge().GetValue()
			case metric.GetHistogram() != nil:
				found[key] = float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	return found
}

// requireCounts compares all metrics but those of the queue.
func requireCounts(t *testing.T, c *provision.ProvisionController, want counts) {
	t.Helper()
	have := gather(t, c.MetricsGatherer())
	delete(have, "persistentvolumeclaim_provision_waiting{}")
	delete(have, "persistentvolumeclaim_provision_oldest_seconds{}")
	require.Equal(t, want, have)
}

func TestMetricsCountOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("no") })
		registry := prometheus.NewRegistry()
		s := run(t, newFakeAPI(newClass("fast")), p, provision.Registerer(registry))
		claim := newClaim("claim", "fast")
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "snap"}
		s.api.createClaim(t, claim)
		s.advance(time.Second)
		queue := gather(t, registry)
		require.Equal(t, 1.0, queue["persistentvolumeclaim_provision_waiting{}"])
		require.Equal(t, 1.0, queue["persistentvolumeclaim_provision_oldest_seconds{}"])
		p.setProvisionErr(nil)
		s.advance(time.Minute)
		s.api.bindAndRelease(t)
		s.api.deleteClaim(t, "claim")
		synctest.Wait()
		s.api.bindAndRelease(t)
		s.advance(time.Second)
		labels := `{class="fast",source="VolumeSnapshot"}`
		requireCounts(t, s.ctrl, counts{
			"persistentvolumeclaim_provision_total" + labels:            1,
			"persistentvolumeclaim_provision_failed_total" + labels:     1,
			"persistentvolumeclaim_provision_duration_seconds" + labels: 1,
			`persistentvolume_delete_total{class="fast"}`:               1,
			`persistentvolume_delete_duration_seconds{class="fast"}`:    1,
		})
		require.Zero(t, gather(t, registry)["persistentvolumeclaim_provision_waiting{}"])
	})
}

func TestMetricsPage(t *testing.T) {
	port, err := freeport.Loopback()
	require.NoError(t, err)
	for range 2 { // the page and its metrics belong to the controller, not to the process
		c, err := provision.New(newFakeAPI().client(nil), driverName, &fakeProvisioner{}, provision.LeaderElection(false),
			provision.MetricsAddress("127.0.0.1"), provision.MetricsPort(int32(port)), provision.MetricsPath("/here"))
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.RunContext(ctx) }()
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/here", port))
			if assert.NoError(t, err) {
				body, err := io.ReadAll(response.Body)
				assert.NoError(t, err)
				assert.NoError(t, response.Body.Close())
				assert.Contains(t, string(body), "controller_persistentvolumeclaim_provision_waiting 0")
			}
		}, time.Minute, 10*time.Millisecond)
		http.DefaultClient.CloseIdleConnections()
		stop()
		require.NoError(t, <-done)
	}
}
