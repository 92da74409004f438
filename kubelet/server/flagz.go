package server

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/klog/v2"
)

// component is the component name that upstream's tools expect.
const component = "kubelet"

// maxLevelBody bounds the body of a request that sets the log level, in bytes.
const maxLevelBody = 32

// flags are the command line's flags, in the form that flagz reads.
type flags map[string]string

var _ flagz.Reader = flags{}

// redacted stands for a secret.
const redacted = "REDACTED"

// GetFlagz implements flagz.Reader. It leaves out passwords: those in URLs, and headers, which usually authenticate.
func (f flags) GetFlagz() map[string]string {
	safe := make(map[string]string, len(f))
	for name, value := range f {
		at, err := url.Parse(value)
		switch {
		case value != "" && (strings.HasSuffix(name, "header") || strings.HasSuffix(name, "token") || strings.HasSuffix(name, "password")):
			value = redacted
		case err == nil && at.User != nil:
			at.User = url.User(redacted)
			value = at.String()
		}
		safe[name] = value
	}
	return safe
}

// statuszRoutes adds the paths /statusz and /flagz.
func (s *Server) statuszRoutes(mux *http.ServeMux) {
	statusz.Install(mux, component, statusz.NewRegistry(compatibility.DefaultBuildEffectiveVersion(),
		statusz.WithListedPaths([]string{"/configz", "/healthz", "/metrics", "/pods", "/stats"})))
	if s.deps.Flags == nil {
		mux.HandleFunc("/flagz", unsupported)
		return
	}
	flagz.Install(mux, component, flags(s.deps.Flags))
}

// setLogLevel sets the log verbosity of the Kubernetes libraries in this process to the number in the request's body.
func setLogLevel(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxLevelBody))
	if err != nil {
		http.Error(w, fmt.Sprintf("read the log level: %v", err), http.StatusBadRequest)
		return
	}
	var level klog.Level
	if err := level.Set(string(body)); err != nil {
		http.Error(w, fmt.Sprintf("the log level %q is not a number", body), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "successfully set klog.logging.verbosity to %s", body)
}
