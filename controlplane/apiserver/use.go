package apiserver

import (
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// reportUse makes the server call used for each request that is not one of an idle cluster.
func reportUse(config *genericapiserver.RecommendedConfig, used func()) {
	build := config.BuildHandlerChainFunc
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if info, found := request.RequestInfoFrom(r.Context()); found && isUse(info) {
				used()
			}
			api.ServeHTTP(w, r)
		}), c)
	}
}

// isUse returns whether a request is more than what clients do in a cluster in which nothing happens: renew leases, open a watch
// again after some minutes, read what the server serves and whether it is well.
func isUse(info *request.RequestInfo) bool {
	if !info.IsResourceRequest || info.Verb == "watch" {
		return false
	}
	return info.Resource != "leases" || !slices.Contains([]string{"update", "patch", "get"}, info.Verb)
}
