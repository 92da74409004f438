package server

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzPaths sends arbitrary methods and paths: what runs something in a container or streams from it is never reached by a request that was
// authorized as anything else.
func FuzzPaths(f *testing.F) {
	for _, path := range []string{
		"/exec/ns/web/app?command=x", "/metrics/../exec/ns/web/app", "//exec/a/b/c", "/%65xec/a/b/c", "/stats/..%2fexec/a/b/c", "/run/a/b/c/", "/logs/x",
	} {
		f.Add("GET", path)
		f.Add("POST", path)
	}
	server := &Server{logger: slog.New(slog.DiscardHandler)}
	mux := http.NewServeMux()
	server.debugRoutes(mux)
	f.Fuzz(func(t *testing.T, method, target string) {
		location, err := url.ParseRequestURI(target)
		if err != nil || method == "" {
			return
		}
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.Method, request.URL, request.RequestURI = method, location, target
		_, pattern := mux.Handler(request)
		verb, subresources := attributesOf(request)
		for _, root := range []string{"exec", "attach", "portForward", "run"} {
			if strings.Contains(pattern, " /"+root+"/") && !redirects(mux, request) {
				require.Equal(t, []string{"proxy"}, subresources, "%s %s is served by %s", method, target, pattern)
				if method == http.MethodGet || method == http.MethodPost {
					require.Equal(t, "create", verb, "%s %s is served by %s", method, target, pattern)
				}
			}
		}
	})
}

// redirects reports whether the mux responds with the clean path instead of serving it.
func redirects(mux *http.ServeMux, request *http.Request) bool {
	handler, _ := mux.Handler(request)
	_, isFunc := handler.(http.HandlerFunc)
	return !isFunc
}

// FuzzQueries parses arbitrary queries for logs.
func FuzzQueries(f *testing.F) {
	f.Add("tailLines=3&follow=true&sinceTime=2026-01-01T00:00:00Z&stream=Stdout&limitBytes=-1")
	f.Add("query=kubelet&pattern=(a+)%2b&boot=-1&tailLines=99999999999999999999")
	f.Add("query=/etc/shadow&query=..%2f..%2fx")
	f.Fuzz(func(t *testing.T, raw string) {
		query, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		if opts, err := logOptions(query); err == nil {
			if validateLogOptions(opts) == nil && opts.TailLines != nil {
				require.GreaterOrEqual(t, *opts.TailLines, int64(0))
			}
		}
		if parsed, err := readLogQuery(query); err == nil && parsed != nil && parsed.validate() == nil {
			require.LessOrEqual(t, len(parsed.services), maxServices)
			for _, service := range parsed.services {
				require.False(t, strings.HasPrefix(service, "-"), "an option of journalctl")
			}
		}
	})
}
