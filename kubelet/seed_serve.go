package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/server"
)

const (
	logsDir = "/var/log"
	// readOnlyHeaderTimeout bounds how long a client of the read-only server may take to say what it wants.
	readOnlyHeaderTimeout = 32 * time.Second
)

// ListenAndServe serves the node's API over TLS until the Kubelet ends. A nil auth asks the API server who may ask
// what, and nil tlsOptions are those of KubeletDeps. A failure is logged, since it has nowhere to go.
func (k *Kubelet) ListenAndServe(address net.IP, port uint, tlsOptions *server.TLSOptions, auth server.AuthInterface,
	enableDebuggingHandlers bool,
) {
	if err := k.serve(address, port, tlsOptions, auth, enableDebuggingHandlers); err != nil {
		k.deps.Logger.Error("the node's server has ended", "address", address, "port", port, "error", err)
	}
}

func (k *Kubelet) serve(address net.IP, port uint, tlsOptions *server.TLSOptions, auth server.AuthInterface,
	debugging bool,
) error {
	if tlsOptions == nil && k.face.injected != nil {
		tlsOptions = k.face.injected.TLSOptions
	}
	if tlsOptions == nil {
		return errors.New("serve the node's API: tlsOptions is nil, and the server speaks TLS only")
	}
	who, err := k.authOf(auth)
	if err != nil {
		return err
	}
	host := k.newHost()
	usage, err := k.newStats(host)
	if err != nil {
		return err
	}
	in := &k.face.configuration
	logs := logsDir
	if !ptr.Deref(in.EnableSystemLogHandler, true) {
		logs = ""
	}
	s, err := server.New(server.Deps{
		Host: host, Auth: who, Metrics: k.metrics, ProbeMetrics: k.probeMetrics, Stats: usage, Configz: k.configz,
		RequestMetrics: k.requests, Flags: k.deps.Flags, Checks: k.health, Logger: k.deps.Logger,
	}, server.Config{
		LogDir: logs, LogQuery: ptr.Deref(in.EnableSystemLogQuery, false),
		Profiling: ptr.Deref(in.EnableProfilingHandler, true), ContentionProfiling: in.EnableContentionProfiling,
		DebugFlags: ptr.Deref(in.EnableDebugFlagsHandler, true),
		NodeName:   k.cfg.NodeName, Addresses: []string{addressOf(address, port)}, CertFile: tlsOptions.CertFile,
		KeyFile: tlsOptions.KeyFile, TLS: tlsOptions.Config, DisableDebugging: !debugging,
	})
	if err != nil {
		return err
	}
	return s.Start(k.face.life)
}

// authOf is the caller's way to decide who may ask what, or else the API server's.
func (k *Kubelet) authOf(auth server.AuthInterface) (server.Auth, error) {
	switch {
	case auth != nil:
		return server.Auth{Authenticator: auth, Authorizer: auth}, nil
	case k.face.auth != nil:
		return *k.face.auth, nil
	}
	return server.NewDelegatedAuth(server.AuthDeps{Client: k.deps.Client, Logger: k.deps.Logger}, server.AuthConfig{
		ClientCAFile: k.face.configuration.Authentication.X509.ClientCAFile,
	})
}

func addressOf(address net.IP, port uint) string {
	host := ""
	if address != nil {
		host = address.String()
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// ListenAndServeReadOnly serves health, metrics, the list of Pods and what they use without TLS and to anyone until the Kubelet ends.
// A failure is logged, since it has nowhere to go.
func (k *Kubelet) ListenAndServeReadOnly(address net.IP, port uint) {
	if err := k.serveReadOnly(address, port); err != nil {
		k.deps.Logger.Error("the node's read-only server has ended", "address", address, "port", port, "error", err)
	}
}

func (k *Kubelet) serveReadOnly(address net.IP, port uint) error {
	var config net.ListenConfig
	listener, err := config.Listen(k.face.life, "tcp", addressOf(address, port))
	if err != nil {
		return fmt.Errorf("serve the node's read-only API: %w", err)
	}
	handler, err := k.readOnly()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	s := &http.Server{Handler: handler, ReadHeaderTimeout: readOnlyHeaderTimeout}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(listener) }()
	select {
	case <-k.face.life.Done():
		return errors.Join(s.Close(), ignoreClosed(<-ended))
	case err := <-ended:
		return fmt.Errorf("serve the node's read-only API: %w", err)
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// readOnly is what anybody may read. Nothing of it runs anything, or reads what a container holds or says.
func (k *Kubelet) readOnly() (http.Handler, error) {
	host := k.newHost()
	usage, err := k.newStats(host)
	if err != nil {
		return nil, fmt.Errorf("serve the node's read-only API: %w", err)
	}
	mux := http.NewServeMux()
	server.StatsRoutes(mux, usage)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.Handle("GET /metrics", promhttp.HandlerFor(k.metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, _ *http.Request) {
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{}}
		for _, pod := range host.GetPods() {
			list.Items = append(list.Items, *pod)
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(&list); err != nil {
			k.deps.Logger.Info("answering with the list of pods failed", "error", err)
		}
	})
	return k.requests.Instrument("readonly", mux), nil
}

// ServeLogs serves the machine's log files, below the path /logs/.
func (k *Kubelet) ServeLogs(w http.ResponseWriter, req *http.Request) {
	http.StripPrefix("/logs/", http.FileServer(http.Dir(logsDir))).ServeHTTP(w, req)
}
