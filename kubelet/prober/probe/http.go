package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// apiVersion is the version in the User-Agent of probes and hooks, which servers may expect.
const apiVersion = "1.36"

// maxRedirects is how many redirects to the same host a probe follows.
const maxRedirects = 10

type httpProber struct {
	transport *http.Transport
}

func newHTTPProber() *httpProber {
	transport := NewHTTPTransport()
	transport.ForceAttemptHTTP2 = true // with its own dialer a transport does not use it unless asked to
	return &httpProber{transport: transport}
}

// NewHTTPTransport returns the transport of HTTP probes and hooks: it uses no proxy, keeps no connection, checks no
// certificate (the API defines probes so) and requests no compression. Its protocol is HTTP/1.1, as it is for hooks; probes use
// HTTP/2 where the server offers it.
func NewHTTPTransport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the API defines probes so
		DisableKeepAlives:  true,
		DisableCompression: true,
		DialContext:        dialer().DialContext,
	}
}

// dialer closes its connections with a short linger, so that thousands of probes leave no TIME-WAIT sockets behind.
func dialer() *net.Dialer {
	return &net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var setErr error
		err := raw.Control(func(fd uintptr) {
			setErr = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
		})
		return errors.Join(err, setErr)
	}}
}

// NewHTTPRequest builds the request of an httpGet handler. podIP is the host unless the handler names one; purpose
// ("probe" or "lifecycle") is part of the User-Agent.
func NewHTTPRequest(
	ctx context.Context, get *corev1.HTTPGetAction, container *corev1.Container, podIP, purpose string,
) (*http.Request, error) {
	port, err := ResolvePort(get.Port, container)
	if err != nil {
		return nil, err
	}
	host := get.Host
	if host == "" {
		host = podIP
	}
	if host == "" {
		return nil, fmt.Errorf("build %s request of container %q: the Pod has no address yet", purpose, container.Name)
	}
	target, err := url.Parse(get.Path)
	if err != nil {
		// The API accepts any path, so one that is not a URL is sent unchanged.
		target = &url.URL{Path: get.Path}
	}
	target.Scheme = strings.ToLower(string(get.Scheme))
	if target.Scheme == "" {
		target.Scheme = "http"
	}
	target.Host = net.JoinHostPort(host, strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("build %s request of container %q: %w", purpose, container.Name, err)
	}
	for _, header := range get.HTTPHeaders {
		req.Header.Add(header.Name, header.Value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", "kube-"+purpose+"/"+apiVersion)
	}
	if _, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}

func (p *httpProber) probe(req *http.Request, timeout time.Duration) (Result, string, error) {
	client := &http.Client{Transport: p.transport, Timeout: timeout, CheckRedirect: CheckRedirect}
	resp, err := client.Do(req)
	if err != nil {
		return Failure, err.Error(), nil
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return Failure, fmt.Sprintf("HTTP probe failed while reading the response: %v", err), nil
	}
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return Success, string(body), nil
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return Warning, fmt.Sprintf("Probe terminated redirects, Response body: %s", body), nil
	}
	// The body is left out: more people can read events than the probed server's responses.
	return Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode), nil
}

// CheckRedirect is the http.Client's of probes and hooks. It stops at a redirect to another host: its response says nothing about the
// container, and the container could make the kubelet send requests wherever only the node may.
func CheckRedirect(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}
