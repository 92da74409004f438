package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/component-base/metrics/prometheus/slis"
	"k8s.io/cri-streaming/pkg/streaming"
)

// routes returns the server's mux. Every request to it has passed Auth.authorize.
func (s *Server) routes() http.Handler {
	mux := s.healthz()
	mux.HandleFunc("GET /pods", s.getPods)
	mux.HandleFunc("GET /pods/{$}", s.getPods)
	mux.Handle("GET /metrics", metricsHandler(s.deps.Metrics))
	mux.Handle("GET /metrics/probes", metricsHandler(s.deps.ProbeMetrics))
	for name, handler := range s.deps.Processes {
		mux.Handle("GET /metrics/processes/"+name, handler)
	}
	mux.HandleFunc("GET /configz", s.getConfigz)
	StatsRoutes(mux, s.deps.Stats)
	slis.SLIMetricsWithReset{}.Install(mux) // results of the checks of /healthz
	s.statuszRoutes(mux)
	mux.HandleFunc("POST /checkpoint/{namespace}/{pod}/{container}", s.checkpoint)

	if s.config.DisableDebugging {
		for _, root := range []string{
			"run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs", "debug",
		} {
			mux.HandleFunc("/"+root+"/", disabled("Debug endpoints are disabled."))
		}
		mux.HandleFunc("/runningpods", disabled("Debug endpoints are disabled."))
		return mux
	}
	s.debugRoutes(mux)
	return mux
}

// debugRoutes adds the paths that read from a container or run something in it.
func (s *Server) debugRoutes(mux *http.ServeMux) {
	if s.config.LogDir == "" {
		mux.HandleFunc("/logs/", disabled("logs endpoint is disabled."))
	} else {
		mux.Handle("GET /logs/", &logHandler{dir: s.config.LogDir, query: s.config.LogQuery, journalctl: s.config.Journalctl})
	}
	if s.config.Profiling {
		profileRoutes(mux)
	} else {
		mux.HandleFunc("/debug/pprof/", disabled("profiling endpoint is disabled."))
	}
	if s.config.DebugFlags {
		mux.HandleFunc("PUT /debug/flags/v", setLogLevel)
	} else {
		mux.HandleFunc("/debug/flags/v", disabled("flags endpoint is disabled."))
	}
	mux.HandleFunc("GET /runningpods", s.getRunningPods)
	mux.HandleFunc("GET /runningpods/{$}", s.getRunningPods)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.getContainerLogs)
	mux.HandleFunc("POST /run/{namespace}/{pod}/{container}", s.run)
	mux.HandleFunc("POST /run/{namespace}/{pod}/{uid}/{container}", s.run)
	exec, attach, portForward := atDebugLevel(s.logger, s.exec), atDebugLevel(s.logger, s.attach), atDebugLevel(s.logger, s.portForward)
	for _, method := range []string{"GET", "POST"} { // WebSocket upgrades are GET, SPDY upgrades mostly POST
		mux.HandleFunc(method+" /exec/{namespace}/{pod}/{container}", exec)
		mux.HandleFunc(method+" /exec/{namespace}/{pod}/{uid}/{container}", exec)
		mux.HandleFunc(method+" /attach/{namespace}/{pod}/{container}", attach)
		mux.HandleFunc(method+" /attach/{namespace}/{pod}/{uid}/{container}", attach)
		mux.HandleFunc(method+" /portForward/{namespace}/{pod}", portForward)
		mux.HandleFunc(method+" /portForward/{namespace}/{pod}/{uid}", portForward)
	}
}

// healthz returns a mux with /healthz and /livez, which are the same here, and one path below each for each check.
func (s *Server) healthz() *http.ServeMux {
	mux := http.NewServeMux()
	HealthRoutes(mux, s.deps.Checks)
	return mux
}

// HealthRoutes adds the paths of /healthz and /livez with these checks and ping.
func HealthRoutes(mux *http.ServeMux, more []healthz.HealthChecker) {
	checks := append([]healthz.HealthChecker{healthz.PingHealthz}, more...)
	healthz.InstallHandler(mux, checks...)
	healthz.InstallLivezHandler(mux, checks...)
}

func metricsHandler(gatherer prometheus.Gatherer) http.Handler {
	if gatherer == nil {
		return http.HandlerFunc(unsupported)
	}
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

func unsupported(w http.ResponseWriter, r *http.Request) {
	http.Error(w, fmt.Sprintf("%s is not served by this version of Berth", r.URL.Path), http.StatusNotFound)
}

// disabled returns a handler for a disabled path.
func disabled(why string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, why, http.StatusMethodNotAllowed) }
}

func (s *Server) getPods(w http.ResponseWriter, _ *http.Request) {
	writePods(w, s.deps.Host.GetPods())
}

func (s *Server) getRunningPods(w http.ResponseWriter, r *http.Request) {
	pods, err := s.deps.Host.GetRunningPods(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	writePods(w, pods)
}

func writePods(w http.ResponseWriter, pods []*corev1.Pod) {
	list := corev1.PodList{
		TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"},
		Items:    make([]corev1.Pod, 0, len(pods)),
	}
	for _, pod := range pods {
		list.Items = append(list.Items, *pod)
	}
	writeJSON(w, list)
}

func (s *Server) getConfigz(w http.ResponseWriter, r *http.Request) {
	if s.deps.Configz == nil {
		unsupported(w, r)
		return
	}
	writeJSON(w, s.deps.Configz())
}

// writeJSON responds with a value. A write error is ignored: the caller is gone.
func writeJSON(w http.ResponseWriter, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

// writeError responds with the status that matches the error.
func writeError(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrNotFound) {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	// Runtime errors carry a gRPC code. A write error is ignored: the caller is gone.
	_ = streaming.WriteError(err, w)
}
