package apiserver

import (
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// reportUse makes the server call used for each request that is not one of an idle cluster, and nodeReported after each that reports the status
// of a Node.
func reportUse(config *genericapiserver.RecommendedConfig, used, nodeReported func()) {
	build := config.BuildHandlerChainFunc
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info, found := request.RequestInfoFrom(r.Context())
			if found && isUse(info) {
				used()
			}
			api.ServeHTTP(w, r)
			if found && isNodeReport(info) {
				nodeReported()
			}
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

// isNodeReport returns whether a request is one by which a kubelet reports the status of its Node.
func isNodeReport(info *request.RequestInfo) bool {
	return info.IsResourceRequest && info.APIGroup == "" && info.Resource == "nodes" && info.Subresource == "status" &&
		slices.Contains([]string{"update", "patch"}, info.Verb)
}
