//go:build integration

package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// prometheusDir has Debian's package prometheus, as `make thirdparty` unpacks it.
const prometheusDir = "../../bin/thirdparty/prometheus/usr/bin"

// monitoringDir has the files for a Prometheus and a Grafana that users take.
const monitoringDir = "../../docs/monitoring"

// prometheus is a running Prometheus.
type prometheus struct {
	t       *testing.T
	address string
}

// checkPrometheus has a real Prometheus read all metrics of the cluster at one place, with the configuration and the rights that
// docs/monitoring says, and compares the alerts and the dashboard there with the metrics that exist.
func checkPrometheus(t *testing.T, c *cluster) {
	t.Helper()
	if _, err := os.Stat(prometheusDir); err != nil {
		t.Skip("Prometheus was not found: run make thirdparty on a machine with apt")
	}
	p := c.startPrometheus(t)
	require.NoError(t, c.poll(func(context.Context) bool { return len(p.query("rate(process_cpu_seconds_total[5m])")) >= 2 }), "no metrics")
	up := map[string]string{}
	for _, sample := range p.query("berth_process_up") {
		up[sample.Metric["berth_process"]+" of "+sample.Metric["berth_node"]] = fmt.Sprint(sample.Value[1])
	}
	require.Equal(t, map[string]string{"controlplane of " + homeNode: "1", "kubelet of " + homeNode: "1", "kube-proxy of " + homeNode: "1", "dns of " + homeNode: "1"}, up)
	require.Empty(t, p.query(`ALERTS{alertstate="firing"}`))
	names := p.names()
	for where, expressions := range map[string][]string{"alerts.yaml": alertExpressions(t), "dashboard.json": dashboardExpressions(t)} {
		require.NotEmpty(t, expressions)
		for _, expression := range expressions {
			p.query(expression) // which fails for one that does not parse
			for _, name := range metricsIn(expression) {
				if name == "berth_panics_total" { // it counts from the first one
					continue
				}
				require.Contains(t, names, name, "%s: %s", where, expression)
			}
		}
	}
}

// startPrometheus starts Prometheus until the end of the test.
func (c *cluster) startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	dir := t.TempDir()
	c.mustRun("kubectl", "create", "serviceaccount", "prometheus", "-n", "kube-system")
	token := strings.TrimSpace(c.mustRun("kubectl", "create", "token", "prometheus", "-n", "kube-system"))
	ca := readFile(t, filepath.Join(c.dataDir, "pki", "ca.crt"))
	require.Equal(t, http.StatusUnauthorized, c.statusOfMetrics(t, ca, "wrong"))
	require.Equal(t, http.StatusForbidden, c.statusOfMetrics(t, ca, token))
	c.mustRun("kubectl", "create", "clusterrolebinding", "prometheus", "--clusterrole=berth:metrics-reader", "--serviceaccount=kube-system:prometheus")
	require.NoError(t, c.poll(func(context.Context) bool { return c.statusOfMetrics(t, ca, token) == http.StatusOK }), "the role allows to read them")
	config := string(readFile(t, filepath.Join(monitoringDir, "prometheus.yaml")))
	for old, replacement := range map[string]string{"127.0.0.1:6443": fmt.Sprintf("127.0.0.1:%d", c.port), "scrape_interval: 30s": "scrape_interval: 5s"} {
		require.Contains(t, config, old)
		config = strings.ReplaceAll(config, old, replacement)
	}
	for name, data := range map[string][]byte{
		"prometheus.yaml": []byte(config), "token": []byte(token), "ca.crt": ca, "alerts.yaml": readFile(t, filepath.Join(monitoringDir, "alerts.yaml")),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	check := exec.CommandContext(t.Context(), prometheusDir+"/promtool", "check", "config", filepath.Join(dir, "prometheus.yaml")) // and the rules
	out, err := check.CombinedOutput()
	require.NoError(t, err, "%s", out)
	p := &prometheus{t: t, address: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	log := newOutput()
	cmd := exec.Command(prometheusDir+"/prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+p.address)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("prometheus ended: %v; it logged:\n%s", err, log)
		}
	})
	require.NoError(t, c.poll(func(context.Context) bool {
		response, err := http.Get("http://" + p.address + "/-/ready") //nolint:gosec,noctx // a server of this test
		return err == nil && response.Body.Close() == nil && response.StatusCode == http.StatusOK
	}), "Prometheus is not ready:\n%s", log)
	return p
}

// statusOfMetrics requests all metrics with a token.
func (c *cluster) statusOfMetrics(t *testing.T, ca []byte, token string) int {
	t.Helper()
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics/cluster", c.port), http.NoBody)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool}}}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	return response.StatusCode
}

// sample is a result of a query.
type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

// query evaluates an expression.
func (p *prometheus) query(expression string) []sample {
	p.t.Helper()
	var result struct {
		Result []sample `json:"result"`
	}
	p.get("/api/v1/query?query="+url.QueryEscape(expression), &result)
	return result.Result
}

// names returns the names of all metrics.
func (p *prometheus) names() []string {
	p.t.Helper()
	var names []string
	p.get("/api/v1/label/__name__/values", &names)
	return names
}

func (p *prometheus) get(path string, data any) {
	p.t.Helper()
	response, err := http.Get("http://" + p.address + path) //nolint:gosec,noctx // a server of this test
	require.NoError(p.t, err)
	defer response.Body.Close()
	var envelope struct {
		Status, Error string
		Data          json.RawMessage
	}
	require.NoError(p.t, json.NewDecoder(response.Body).Decode(&envelope))
	require.Equal(p.t, "success", envelope.Status, "%s: %s", path, envelope.Error)
	require.NoError(p.t, json.Unmarshal(envelope.Data, data))
}

// alertExpressions are those of the alert rules.
func alertExpressions(t *testing.T) []string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct{ Expr string }
		}
	}
	require.NoError(t, yaml.Unmarshal(readFile(t, filepath.Join(monitoringDir, "alerts.yaml")), &file))
	var all []string
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			all = append(all, rule.Expr)
		}
	}
	return all
}

// dashboardExpressions are those of the dashboard's panels.
func dashboardExpressions(t *testing.T) []string {
	t.Helper()
	var file struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(readFile(t, filepath.Join(monitoringDir, "dashboard.json")), &file))
	var all []string
	for _, panel := range file.Panels {
		for _, target := range panel.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}

var (
	notMetrics  = regexp.MustCompile(`\{[^}]*\}|\[[^]]*\]|"[^"]*"|\b(by|without) *\([^)]*\)`)
	identifiers = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*( *\()?`)
)

// metricsIn returns the metrics that an expression names: what is no function, no label and no operator.
func metricsIn(expression string) []string {
	var names []string
	for _, name := range identifiers.FindAllString(notMetrics.ReplaceAllString(expression, " "), -1) {
		if !strings.HasSuffix(name, "(") && !slices.Contains([]string{"and", "or", "unless", "sum", "max", "min", "on", "ignoring", "le"}, name) {
			names = append(names, name)
		}
	}
	return names
}
