package nodenetwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/berth-dev/berth/explain"
)

// metricsTimeout bounds the request for kube-proxy's metrics.
const metricsTimeout = 2 * time.Second

// Proxy returns the state of the node's kube-proxy by its process and its metrics.
func (n *Network) Proxy(ctx context.Context) (explain.ProxyState, error) {
	process := n.config.Proxy
	state := explain.ProxyState{LogFile: process.LogFile}
	if process.ConfigFile == "" {
		return state, errors.New("its process on this node is unknown here")
	}
	data, err := os.ReadFile(process.ConfigFile)
	if errors.Is(err, fs.ErrNotExist) {
		return explain.ProxyState{Disabled: true}, nil
	}
	if err != nil {
		return state, fmt.Errorf("read the configuration of kube-proxy: %w", err)
	}
	var config struct {
		MetricsBindAddress string `json:"metricsBindAddress"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return state, fmt.Errorf("read the configuration of kube-proxy: %w", err)
	}
	running := n.running(ctx, process.PIDFile)
	if running == "" {
		state.Problem = "does not run: " + lastLine(process.LogFile)
		return state, nil
	}
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	families, err := scrape(ctx, running, config.MetricsBindAddress)
	if err != nil {
		state.Problem = fmt.Sprintf("(process %s) does not respond: %v", filepath.Base(string(running)), err)
		return state, nil
	}
	state.QueuedAt, state.SyncedAt = laggingFamily(families)
	for _, metric := range families["kubeproxy_sync_proxy_rules_nftables_sync_failures_total"].GetMetric() {
		state.Failures += int(metric.GetCounter().GetValue())
	}
	return state, nil
}

// scrape reads metrics on loopback in the network namespace of the process.
func scrape(ctx context.Context, process procDir, address string) (map[string]*dto.MetricFamily, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialIn(ctx, process, network, address)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}

// laggingFamily returns the times of the address family that is furthest behind: kube-proxy writes the rules of IPv4 and IPv6
// apart from each other.
func laggingFamily(families map[string]*dto.MetricFamily) (queued, synced time.Time) {
	queuedBy := gauges(families["kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"])
	syncedBy := gauges(families["kubeproxy_sync_proxy_rules_last_timestamp_seconds"])
	for family, at := range queuedBy {
		behind, worst := at.Sub(syncedBy[family]), queued.Sub(synced)
		if queued.IsZero() || behind > worst {
			queued, synced = at, syncedBy[family]
		}
	}
	return queued, synced
}

// gauges returns the times of a gauge by the value of its label ip_family; a gauge that was never set has the zero time.
func gauges(family *dto.MetricFamily) map[string]time.Time {
	times := make(map[string]time.Time)
	for _, metric := range family.GetMetric() {
		key := ""
		for _, label := range metric.GetLabel() {
			if label.GetName() == "ip_family" {
				key = label.GetValue()
			}
		}
		if seconds := metric.GetGauge().GetValue(); seconds > 0 {
			times[key] = time.UnixMicro(int64(seconds * 1e6))
		}
	}
	return times
}

// DNSProblem says why the cluster's DNS does not run on this node.
func (n *Network) DNSProblem(ctx context.Context) string {
	process := n.config.DNS
	if _, err := os.Stat(process.ConfigFile); err != nil || n.running(ctx, process.PIDFile) != "" {
		return ""
	}
	return "does not run: " + lastLine(process.LogFile)
}

// Resolvers returns the servers to which the cluster's DNS forwards names of the outside.
func (n *Network) Resolvers(context.Context) (servers []string, file string, err error) {
	if n.config.Resolvers == nil {
		return nil, "", errors.New("the configuration of the cluster's DNS is unknown here")
	}
	return n.config.Resolvers()
}

// lastLine returns the last line of a log.
func lastLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "no log: " + err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return fmt.Sprintf("%s (see %s)", lines[len(lines)-1], path)
}
