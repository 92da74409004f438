package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

func TestRequestsOfAnIdleClusterAreNoUse(t *testing.T) {
	uses, served, reports := 0, 0, 0
	config := &genericapiserver.RecommendedConfig{}
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	config.BuildHandlerChainFunc = func(api http.Handler, _ *genericapiserver.Config) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // as WithRequestInfo does
			info, err := resolver.NewRequestInfo(r)
			require.NoError(t, err)
			api.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
		})
	}
	reportUse(config, func() { uses++ }, func() { reports++ })
	handler := config.BuildHandlerChainFunc(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }), nil)
	requests := []struct {
		method, path string
		use          bool
	}{
		{http.MethodGet, "/readyz", false},
		{http.MethodGet, "/openapi/v3", false},
		{http.MethodGet, "/apis", false},
		{http.MethodPut, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node", false},
		{http.MethodPatch, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node", false},
		{http.MethodGet, "/api/v1/pods?watch=true", false},
		{http.MethodGet, "/api/v1/pods", true},
		{http.MethodGet, "/api/v1/namespaces/default/pods/a", true},
		{http.MethodPost, "/api/v1/namespaces/default/pods", true},
		{http.MethodPatch, "/api/v1/namespaces/default/pods/a/status", true},
		{http.MethodPatch, "/api/v1/nodes/node/status", true},
		{http.MethodGet, "/api/v1/nodes/node/status", true},
		{http.MethodPatch, "/api/v1/nodes/node", true},
		{http.MethodDelete, "/apis/coordination.k8s.io/v1/namespaces/default/leases/mine", true},
	}
	for i, r := range requests {
		before := uses
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(r.method, r.path, nil))
		require.Equal(t, r.use, uses > before, "%s %s", r.method, r.path)
		require.Equal(t, i+1, served)
	}
	require.Equal(t, 1, reports, "of the status of a Node")
}
