package clustermetrics

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protodelim"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/legacyregistry"
	nodeutil "k8s.io/component-helpers/node/util"
)

// The processes.
const (
	processControlPlane = "controlplane"
	processKubelet      = "kubelet"
	processProxy        = "kube-proxy"
	processDNS          = "dns"
)

// source is one process.
type source struct {
	process, node string
	// read returns its metrics, a part for each of its pages.
	read func(ctx context.Context) ([][]*dto.MetricFamily, error)
}

// readOwn returns the metrics of this process: Kubernetes' components register theirs in one registry, etcd in another.
func readOwn(context.Context) ([][]*dto.MetricFamily, error) {
	kubernetes, err := legacyregistry.DefaultGatherer.Gather()
	etcd, etcdErr := prometheus.DefaultGatherer.Gather()
	return [][]*dto.MetricFamily{kubernetes, etcd}, errors.Join(err, etcdErr)
}

// kubeletPages are the pages of a kubelet that are read. /metrics/cadvisor has the usage of containers in far more detail than
// /metrics/resource, and the same names for both.
var kubeletPages = []string{"/metrics", "/metrics/resource", "/metrics/probes"}

// nodeProxyPage is the page of a kubelet of Berth with the metrics of its node's kube-proxy.
const nodeProxyPage = "/metrics/processes/kube-proxy"

// errAbsent is the error of a process that does not exist.
var errAbsent = errors.New("there is no such process")

// readKubelet returns pages of a node's kubelet.
func (h *Handler) readKubelet(ctx context.Context, node *corev1.Node, names ...string) ([][]*dto.MetricFamily, error) {
	if _, ready := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady); ready == nil || ready.Status != corev1.ConditionTrue {
		return nil, errors.New("the node is not Ready")
	}
	connection, err := h.deps.Connections.GetConnectionInfo(ctx, types.NodeName(node.Name))
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: connection.Transport}
	var pages [][]*dto.MetricFamily
	for _, name := range names {
		address := url.URL{Scheme: connection.Scheme, Host: net.JoinHostPort(connection.Hostname, connection.Port), Path: name}
		families, err := fetch(ctx, client, address.String())
		if err != nil {
			return pages, err
		}
		pages = append(pages, families)
	}
	return pages, nil
}

// readNodeProxy returns the metrics of the kube-proxy of another machine, through its kubelet. It returns errAbsent for a node without
// one, and for a node whose kubelet does not say that it has one.
func (h *Handler) readNodeProxy(ctx context.Context, node *corev1.Node) ([][]*dto.MetricFamily, error) {
	pages, err := h.readKubelet(ctx, node, nodeProxyPage)
	var status statusError
	if err != nil && (!errors.As(err, &status) || status.code < http.StatusInternalServerError) {
		return nil, errAbsent
	}
	return pages, err
}

// statusError is the error of a response with another status than 200.
type statusError struct {
	code int
	text string
}

// Error implements error.
func (e statusError) Error() string { return e.text }

// proxyAddress returns the address of the metrics of this machine's kube-proxy, as its configuration has it; empty if it has none.
func proxyAddress(file string) (string, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find the metrics of kube-proxy: %w", err)
	}
	var config struct {
		MetricsBindAddress string `json:"metricsBindAddress"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return "", fmt.Errorf("find the metrics of kube-proxy in %s: %w", file, err)
	}
	return config.MetricsBindAddress, nil
}

// readProxy returns the metrics that kube-proxy serves on loopback.
func readProxy(ctx context.Context, address string) ([][]*dto.MetricFamily, error) {
	transport := &http.Transport{Proxy: nil} // an HTTP proxy of the environment must not see it
	defer transport.CloseIdleConnections()
	families, err := fetch(ctx, &http.Client{Transport: transport}, "http://"+address+"/metrics")
	return [][]*dto.MetricFamily{families}, err
}

// readSocket returns the metrics that a process serves on a unix socket.
func readSocket(ctx context.Context, socket string) ([][]*dto.MetricFamily, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	families, err := fetch(ctx, &http.Client{Transport: transport}, "http://localhost/metrics")
	return [][]*dto.MetricFamily{families}, err
}

// maxPage bounds what a process may send, in bytes.
const maxPage = 64 << 20

// fetch reads a page of metrics, in the binary format if the process has that: it keeps native histograms.
func fetch(ctx context.Context, client *http.Client, address string) ([]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim))+";q=1,"+string(expfmt.NewFormat(expfmt.TypeTextPlain))+";q=0.5")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, 512)) // the status says enough without it
		return nil, statusError{response.StatusCode, fmt.Sprintf("read %s: %s: %s", address, response.Status, reason)}
	}
	decode := decoderOf(http.MaxBytesReader(nil, response.Body, maxPage), expfmt.ResponseFormat(response.Header))
	var families []*dto.MetricFamily
	for {
		family := &dto.MetricFamily{}
		if err := decode(family); errors.Is(err, io.EOF) {
			return families, nil
		} else if err != nil {
			return families, fmt.Errorf("read %s: %w", address, err)
		}
		families = append(families, family)
	}
}

// decoderOf returns what decodes the next family. In the binary format each has its size before it, and expfmt's decoder allocates any size
// that a process claims.
func decoderOf(page io.Reader, format expfmt.Format) func(*dto.MetricFamily) error {
	if format.FormatType() != expfmt.TypeProtoDelim {
		return expfmt.NewDecoder(page, format).Decode
	}
	buffered, options := bufio.NewReader(page), protodelim.UnmarshalOptions{MaxSize: maxPage}
	return func(family *dto.MetricFamily) error { return options.UnmarshalFrom(buffered, family) }
}
