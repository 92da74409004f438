package kubelet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/server"
)

const (
	logsDir = "/var/log"
	// readOnlyHeaderTimeout bounds how long a client of the read-only server may take to say what it wants.
	readOnlyHeaderTimeout = 32 * time.Second
)

// ListenAndServe serves the node's API over TLS until the Kubelet ends, and names its port in the Node. A nil auth is that of
// KubeletDeps, or else delegates to the API server, and nil tlsOptions are those of KubeletDeps. A failure is logged, since
// it cannot be returned.
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
	if tlsOptions == nil {
		tlsOptions = k.injected.TLSOptions
	}
	if tlsOptions == nil {
		return errors.New("serve the node's API: tlsOptions is nil, and the server needs TLS")
	}
	delegated, err := k.serverAuth(auth)
	if err != nil {
		return err
	}
	k.parts.Node.SetPort(int32(port))
	in := &k.configuration
	logs := logsDir
	if !ptr.Deref(in.EnableSystemLogHandler, true) {
		logs = ""
	}
	s, err := server.New(k.agent.ServerDeps(delegated), server.Config{
		LogDir: logs, LogQuery: ptr.Deref(in.EnableSystemLogQuery, false),
		Profiling: ptr.Deref(in.EnableProfilingHandler, true), ContentionProfiling: in.EnableContentionProfiling,
		DebugFlags: ptr.Deref(in.EnableDebugFlagsHandler, true),
		NodeName:   k.config.Node.Name, Addresses: []string{hostPort(address, port)}, CertFile: tlsOptions.CertFile,
		KeyFile: tlsOptions.KeyFile, TLS: cmp.Or(tlsOptions.Config, k.config.Server.TLS), DisableDebugging: !debugging,
		StreamIdleTimeout: k.config.Server.StreamIdleTimeout,
	})
	if err != nil {
		return err
	}
	return s.Start(k.ctx)
}

// serverAuth returns the caller's authentication and authorization, or else those of the API server.
func (k *Kubelet) serverAuth(auth server.AuthInterface) (server.Auth, error) {
	switch {
	case auth != nil:
		return server.Auth{Authenticator: auth, Authorizer: auth, Attributes: auth}, nil
	case k.auth != nil:
		return *k.auth, nil
	}
	access := k.access
	access.ClientCAFile = k.configuration.Authentication.X509.ClientCAFile
	return server.NewDelegatedAuth(server.AuthDeps{Client: k.deps.Client, Logger: k.deps.Logger}, access)
}

func hostPort(address net.IP, port uint) string {
	host := ""
	if address != nil {
		host = address.String()
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// ListenAndServeReadOnly serves health, metrics, the list of Pods and their usage, without TLS and authentication, until the
// Kubelet ends.
// A failure is logged, since it cannot be returned.
func (k *Kubelet) ListenAndServeReadOnly(address net.IP, port uint) {
	if err := k.serveReadOnly(address, port); err != nil {
		k.deps.Logger.Error("the read-only server has ended", "address", address, "port", port, "error", err)
	}
}

func (k *Kubelet) serveReadOnly(address net.IP, port uint) error {
	var config net.ListenConfig
	listener, err := config.Listen(k.ctx, "tcp", hostPort(address, port))
	if err != nil {
		return fmt.Errorf("serve the node's read-only API: %w", err)
	}
	s := &http.Server{Handler: contain.Handler("kubelet.readOnly", server.ReadOnlyHandler(k.agent.ServerDeps(server.Auth{}))), ReadHeaderTimeout: readOnlyHeaderTimeout}
	ended := make(chan error, 1)
	go func() { ended <- contain.Do("kubelet.serveReadOnly", "", func() error { return s.Serve(listener) }) }()
	select {
	case <-k.ctx.Done():
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

// ServeLogs serves the machine's log files, below the path /logs/. A symbolic link that leads out of their directory, which a Pod may have
// made that has a part of it, leads nowhere.
func (k *Kubelet) ServeLogs(w http.ResponseWriter, req *http.Request) { serveLogs(logsDir, w, req) }

func serveLogs(dir string, w http.ResponseWriter, req *http.Request) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		http.Error(w, "the log directory cannot be opened", http.StatusInternalServerError)
		return
	}
	defer root.Close()
	http.StripPrefix("/logs/", http.FileServerFS(root.FS())).ServeHTTP(w, req)
}
