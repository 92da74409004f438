package server_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/berth-dev/berth/kubelet/server"
)

// TestReadOnlyHandler requests what anybody may read, and what must not exist there.
func TestReadOnlyHandler(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_answer"}))
	handler := server.ReadOnlyHandler(server.Deps{
		Host:    &fakeHost{pods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"}}}},
		Metrics: registry, ProbeMetrics: prometheus.NewRegistry(),
		Checks: []healthz.HealthChecker{healthz.NamedCheck("everything", func(*http.Request) error { return nil })},
	})
	do := func(method, path string) (code int, body string) {
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody))
		return response.Code, response.Body.String()
	}
	for path, want := range map[string]string{
		"/healthz": "ok", "/pods": `"web"`, "/pods/": `"web"`, "/metrics": "kubelet_answer 0", "/metrics/probes": "",
		"/metrics/slis": `kubernetes_healthcheck{name="everything",type="healthz"} 1`,
	} {
		if path == "/metrics/slis" {
			do(http.MethodGet, "/healthz") // it has the results of these checks
		}
		code, body := do(http.MethodGet, path)
		require.Equal(t, http.StatusOK, code, path)
		require.Contains(t, body, want, path)
	}
	for _, path := range []string{"/metrics/slis", "/pods", "/metrics"} {
		code, _ := do(http.MethodDelete, path)
		require.Equal(t, http.StatusMethodNotAllowed, code, path)
	}
	for _, path := range []string{"/configz", "/logs/", "/containerLogs/ns/web/app", "/exec/ns/web/app", "/run/ns/web/app", "/runningpods/", "/debug/pprof/", "/checkpoint/ns/web/app"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			code, _ := do(method, path)
			require.Equal(t, http.StatusNotFound, code, path)
		}
	}
}
