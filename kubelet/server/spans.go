package server

import (
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"k8s.io/component-base/tracing"
)

// traced makes a span for each request, named by the path that it matches. A caller cannot make its own trace the parent of
// the span, only a link: anyone may connect.
func (s *Server) traced(next http.Handler) http.Handler {
	if s.deps.TracerProvider == nil {
		return next
	}
	return otelhttp.NewHandler(next, "kubelet",
		otelhttp.WithTracerProvider(s.deps.TracerProvider), otelhttp.WithPropagators(tracing.Propagators()),
		otelhttp.WithPublicEndpointFn(func(*http.Request) bool { return true }),
		otelhttp.WithSpanNameFormatter(func(operation string, r *http.Request) string {
			if r.Pattern == "" {
				return operation
			}
			return r.Pattern
		}))
}
