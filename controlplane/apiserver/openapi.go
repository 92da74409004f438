package apiserver

import (
	"fmt"
	"net/http"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
)

// installOpenAPI makes the API server describe its own resources at /openapi/v2 and /openapi/v3. Upstream builds both descriptions
// before it serves anything, and keeps them; here a request for one builds it, and a request for one group of version 3 that of
// this group alone. The configuration must have SkipOpenAPIInstallation.
func installOpenAPI(aggregator *genericapiserver.GenericAPIServer, config *genericapiserver.Config) error {
	kube, ok := aggregator.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return fmt.Errorf("install the OpenAPI descriptions: the aggregator delegates to a %T", aggregator.NextDelegate())
	}
	resources, paths := kube.Handler.GoRestfulContainer, kube.Handler.NonGoRestfulMux
	paths.Handle("/openapi/v2", &installedOnRequest{name: "openapi-v2", install: func(on *mux.PathRecorderMux) {
		routes.OpenAPI{Config: config.OpenAPIConfig}.InstallV2(resources, on)
	}})
	v3 := &openAPIV3{config: config.OpenAPIV3Config, services: resources.RegisteredWebServices}
	paths.Handle(openAPIV3Root, http.HandlerFunc(v3.serveRoot))
	paths.HandlePrefix(openAPIV3Root+"/", http.HandlerFunc(v3.serveGroup))
	return nil
}

// installedOnRequest is a handler that is made at the first request. It is safe for concurrent use.
type installedOnRequest struct {
	name    string
	install func(on *mux.PathRecorderMux)

	once  sync.Once
	paths *mux.PathRecorderMux
}

func (h *installedOnRequest) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	h.once.Do(func() {
		h.paths = mux.NewPathRecorderMux(h.name)
		h.install(h.paths)
		h.install = nil // with all that it holds
	})
	h.paths.ServeHTTP(response, request)
}
