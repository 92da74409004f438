package server

import (
	"fmt"
	"io"
	"net/http"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/klog/v2"
)

// component is the name that upstream's tools expect of a node agent.
const component = "kubelet"

// maxLevelBody bounds the body of a change of the log's level, in bytes.
const maxLevelBody = 32

// flags are the command line's, as flagz reads them.
type flags map[string]string

var _ flagz.Reader = flags{}

// GetFlagz implements flagz.Reader.
func (f flags) GetFlagz() map[string]string { return f }

// statuszRoutes are those by which a process tells of itself.
func (s *Server) statuszRoutes(mux *http.ServeMux) {
	statusz.Install(mux, component, statusz.NewRegistry(compatibility.DefaultBuildEffectiveVersion(),
		statusz.WithListedPaths([]string{"/configz", "/healthz", "/metrics", "/pods", "/stats"})))
	if s.deps.Flags == nil {
		mux.HandleFunc("/flagz", unsupported)
		return
	}
	flagz.Install(mux, component, flags(s.deps.Flags))
}

// setLogLevel sets how much the Kubernetes libraries in this process log; the number is the request's body.
func setLogLevel(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxLevelBody))
	if err != nil {
		http.Error(w, fmt.Sprintf("read the log level: %v", err), http.StatusBadRequest)
		return
	}
	var level klog.Level
	if err := level.Set(string(body)); err != nil {
		http.Error(w, fmt.Sprintf("the log level %q is no number", body), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "successfully set klog.logging.verbosity to %s", body)
}
