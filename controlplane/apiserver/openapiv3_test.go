package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/emicklei/go-restful/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

func described(path string) *restful.WebService {
	service := new(restful.WebService).Path(path).Produces("application/json")
	return service.Route(service.GET("/things").Operation("list"+path).Returns(http.StatusOK, "OK", "").
		To(func(*restful.Request, *restful.Response) {}))
}

func TestDescriptionOfAGroupIsMadeWhenItIsRequested(t *testing.T) {
	services := []*restful.WebService{described("/api/v1"), described("/apis/apps/v1")}
	config := &common.OpenAPIV3Config{Info: &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: "v1"}}}
	config.GetDefinitions = func(common.ReferenceCallback) map[string]common.OpenAPIDefinition { return nil }
	o := &openAPIV3{config: config, services: func() []*restful.WebService { return services }}
	paths := mux.NewPathRecorderMux("test")
	paths.Handle(openAPIV3Root, http.HandlerFunc(o.serveRoot))
	paths.HandlePrefix(openAPIV3Root+"/", http.HandlerFunc(o.serveGroup))
	get := func(handler http.Handler, path string) *httptest.ResponseRecorder {
		response := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodGet, path, nil)
		request.Header.Set("Accept", "application/json")
		handler.ServeHTTP(response, request)
		return response
	}
	all := restful.NewContainer()
	for _, service := range services {
		all.Add(service)
	}
	upstream := mux.NewPathRecorderMux("upstream")
	routes.OpenAPI{V3Config: config}.InstallV3(all, upstream)

	var list, wanted handler3.OpenAPIV3Discovery
	require.NoError(t, json.Unmarshal(get(paths, "/openapi/v3").Body.Bytes(), &list))
	require.NoError(t, json.Unmarshal(get(upstream, "/openapi/v3").Body.Bytes(), &wanted))
	require.Len(t, list.Paths, len(wanted.Paths))
	require.Nil(t, o.groups["api/v1"].document.paths, "made for the list")

	for name := range wanted.Paths {
		response := get(paths, list.Paths[name].ServerRelativeURL)
		require.Equal(t, http.StatusOK, response.Code)
		require.Equal(t, "public, immutable", response.Header().Get("Cache-Control"))
		require.JSONEq(t, get(upstream, wanted.Paths[name].ServerRelativeURL).Body.String(), response.Body.String())
		require.Contains(t, response.Body.String(), "/things")
	}
	response := get(paths, "/openapi/v3/apis/apps/v1?hash=OLD")
	require.Equal(t, http.StatusMovedPermanently, response.Code)
	require.Equal(t, list.Paths["apis/apps/v1"].ServerRelativeURL, response.Header().Get("Location"))
	response = get(paths, "/openapi/v3/apis/apps/v1")
	require.Equal(t, http.StatusOK, response.Code)
	require.Empty(t, response.Header().Get("Cache-Control"))
	require.Equal(t, http.StatusNotFound, get(paths, "/openapi/v3/apis/nothing/v1").Code)
	require.NotEqual(t, o.groups["api/v1"].hash, o.groups["apis/apps/v1"].hash)
}
