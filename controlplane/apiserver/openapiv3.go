package apiserver

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/component-base/version"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
)

const openAPIV3Root = "/openapi/v3"

// openAPIV3 describes the API in OpenAPI version 3, one document for each group and version. The aggregator requests the list of
// documents when the server starts and every second after that. In upstream's list each document has the hash of its
// contents, so that the list needs all documents: 0.2 s of CPU. Here it has the hash of what the document is made from, and a
// document is made when it is requested. It is safe for concurrent use.
type openAPIV3 struct {
	config   *common.OpenAPIV3Config
	services func() []*restful.WebService

	once   sync.Once
	groups map[string]*openAPIGroup
	list   []byte
}

// openAPIGroup is the document of one group and version, such as apis/apps/v1.
type openAPIGroup struct {
	hash     string
	document installedOnRequest
}

func (o *openAPIV3) prepare() {
	o.groups = map[string]*openAPIGroup{}
	list := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, service := range o.services() {
		name := strings.TrimPrefix(service.RootPath(), "/")
		group := &openAPIGroup{hash: hashOfRoutes(service), document: installedOnRequest{name: name, install: func(on *mux.PathRecorderMux) {
			routes.OpenAPI{V3Config: o.config}.InstallV3(restful.NewContainer().Add(service), on)
		}}}
		o.groups[name] = group
		list.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: group.url(name)}
	}
	// A map of strings has no error.
	o.list, _ = json.Marshal(&list)
}

// hashOfRoutes identifies the document that this program makes of a service: types are those of the version of Kubernetes, and
// the routes depend on the configuration.
func hashOfRoutes(service *restful.WebService) string {
	hash := sha256.New()
	fmt.Fprintln(hash, version.Get().GitVersion)
	for _, route := range service.Routes() {
		fmt.Fprintln(hash, route.Method, route.Path, route.Operation)
	}
	return fmt.Sprintf("%X", hash.Sum(nil))
}

func (g *openAPIGroup) url(name string) string {
	return openAPIV3Root + "/" + name + "?" + url.Values{"hash": {g.hash}}.Encode()
}

func (o *openAPIV3) serveRoot(response http.ResponseWriter, _ *http.Request) {
	o.once.Do(o.prepare)
	response.Header().Set("Content-Type", "application/json")
	_, _ = response.Write(o.list) // fails only if the client is gone
}

// serveGroup serves a document as upstream does: a document that was requested with its hash may be kept for ever, and a client
// with an old hash is redirected to the new one.
func (o *openAPIV3) serveGroup(response http.ResponseWriter, request *http.Request) {
	o.once.Do(o.prepare)
	name := strings.TrimPrefix(request.URL.Path, openAPIV3Root+"/")
	group, ok := o.groups[name]
	if !ok {
		http.NotFound(response, request)
		return
	}
	switch request.URL.Query().Get("hash") {
	case "":
	case group.hash:
		response.Header().Set("Cache-Control", "public, immutable")
		response.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
		request = request.Clone(request.Context())
		request.URL.RawQuery = "" // the document has a hash of its own
	default:
		http.Redirect(response, request, group.url(name), http.StatusMovedPermanently)
		return
	}
	group.document.ServeHTTP(response, request)
}
