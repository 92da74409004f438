package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	translate "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/berth-dev/berth/internal/podutil"
)

// podAndContainer returns the Pod and container that a request names, or responds with an error.
func (s *Server) podAndContainer(w http.ResponseWriter, r *http.Request) (pod *corev1.Pod, container string, ok bool) {
	namespace, name := r.PathValue("namespace"), r.PathValue("pod")
	pod, found := s.deps.Host.GetPodByName(namespace, name)
	if !found {
		http.Error(w, fmt.Sprintf("pod %q does not exist in namespace %q on this node", name, namespace),
			http.StatusNotFound)
		return nil, "", false
	}
	if uid := r.PathValue("uid"); uid != "" && s.deps.Host.ResolvePodUID(types.UID(uid)) != pod.UID {
		http.Error(w, fmt.Sprintf("pod %q in namespace %q does not have the UID %q", name, namespace, uid),
			http.StatusNotFound)
		return nil, "", false
	}
	container = r.PathValue("container")
	if container != "" {
		if found, _ := podutil.FindContainer(&pod.Spec, container); found == nil {
			http.Error(w, fmt.Sprintf("container %q not found in pod %q", container, name), http.StatusNotFound)
			return nil, "", false
		}
	}
	return pod, container, true
}

// exec serves /exec: a command in a container, its streams over SPDY or WebSocket.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	cmd := r.URL.Query()["command"]
	if len(cmd) == 0 {
		http.Error(w, "you must specify a command (query parameter \"command\")", http.StatusBadRequest)
		return
	}
	pod, container, ok := s.podAndContainer(w, r)
	if !ok {
		return
	}
	release, ok := s.streams.acquire(w, pod.UID)
	if !ok {
		return
	}
	defer release()
	location, err := s.deps.Host.GetExec(r.Context(), pod, container, cmd, *opts)
	if err != nil {
		writeError(w, err)
		return
	}
	s.remoteCommand(w, r, "exec", location, opts)
}

// attach serves /attach: the streams of a container's own process.
func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, container, ok := s.podAndContainer(w, r)
	if !ok {
		return
	}
	release, ok := s.streams.acquire(w, pod.UID)
	if !ok {
		return
	}
	defer release()
	location, err := s.deps.Host.GetAttach(r.Context(), pod, container, *opts)
	if err != nil {
		writeError(w, err)
		return
	}
	s.remoteCommand(w, r, "attach", location, opts)
}

// remoteCommand connects the caller's streams to those that the runtime serves at location. The runtime supports SPDY
// and the older WebSocket protocols; the newest one, which can close a stream, is translated.
func (s *Server) remoteCommand(w http.ResponseWriter, r *http.Request, subresource string, location *url.URL, opts *remotecommand.Options) {
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		s.deps.RequestMetrics.countTranslated(subresource)
		translate.NewStreamTranslatorHandler(location, nil, 0, translate.Options{
			Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, Tty: opts.TTY,
		}).ServeHTTP(w, r)
		return
	}
	s.upgrade(location).ServeHTTP(w, r)
}

// portForward serves /portForward: ports of a Pod over SPDY, plain or tunnelled through a WebSocket.
func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	tunnelled := wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	opts := &portforward.V4Options{} // a tunnel names its ports inside
	if !tunnelled {
		var err error
		if opts, err = portforward.NewV4Options(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	pod, _, ok := s.podAndContainer(w, r)
	if !ok {
		return
	}
	release, ok := s.streams.acquire(w, pod.UID)
	if !ok {
		return
	}
	defer release()
	location, err := s.deps.Host.GetPortForward(r.Context(), pod, *opts)
	if err != nil {
		writeError(w, err)
		return
	}
	if tunnelled {
		s.deps.RequestMetrics.countTranslated("portforward")
		translate.NewTunnelingHandler(s.upgrade(location)).ServeHTTP(w, r)
		return
	}
	s.upgrade(location).ServeHTTP(w, r)
}

// upgrade proxies an upgraded connection to location.
func (s *Server) upgrade(location *url.URL) http.Handler {
	return proxy.NewUpgradeAwareHandler(location, nil, false, true, responder{s.logger})
}

// responder responds when the proxy cannot reach the runtime's stream server.
type responder struct{ logger *slog.Logger }

var _ proxy.ErrorResponder = responder{}

// Error implements proxy.ErrorResponder.
func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) {
	var apiErr apierrors.APIStatus
	if errors.As(err, &apiErr) { // the request itself is invalid, for instance without an upgrade
		http.Error(w, err.Error(), int(apiErr.Status().Code))
		return
	}
	r.logger.Warn("failed to proxy stream to container runtime", "path", req.URL.Path, "error", err)
	http.Error(w, fmt.Sprintf("proxy stream to the container runtime: %v", err), http.StatusInternalServerError)
}

// run serves /run: it runs a command to its end and responds with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	cmd := strings.Fields(r.FormValue("cmd"))
	if len(cmd) == 0 {
		http.Error(w, "you must specify a command (query parameter \"cmd\", words separated by spaces)",
			http.StatusBadRequest)
		return
	}
	pod, container, ok := s.podAndContainer(w, r)
	if !ok {
		return
	}
	output, err := s.deps.Host.RunInContainer(r.Context(), pod, container, cmd)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if _, err := w.Write(output); err != nil {
		s.logger.Debug("failed to write response", "error", err)
	}
}
