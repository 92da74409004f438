package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/internal/freeport"
)

// emptyCluster is an API server without objects but for one Lease. It ends no watch.
type emptyCluster struct {
	mu                 sync.Mutex // guards all below
	lease, contentType string
}

// kinds are the kinds of the resources that controllers watch.
var kinds = map[string]string{
	"pods": "Pod", "nodes": "Node", "replicasets": "ReplicaSet", "persistentvolumes": "PersistentVolume",
	"persistentvolumeclaims": "PersistentVolumeClaim", "storageclasses": "StorageClass", "csidrivers": "CSIDriver",
	"csinodes": "CSINode", "volumeattachments": "VolumeAttachment", "csistoragecapacities": "CSIStorageCapacity",
}

// ServeHTTP implements http.Handler.
func (c *emptyCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	version := "v1"
	if path[0] == "apis" {
		version = path[1] + "/" + path[2]
	}
	kind := kinds[path[len(path)-1]]
	switch {
	case strings.Contains(r.URL.Path, "/leases"):
		c.serveLease(w, r)
	case kind == "":
		http.NotFound(w, r)
	case r.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"type": "BOOKMARK", "object": {"kind": %q, "apiVersion": %q, "metadata": {"resourceVersion": "1",
			"annotations": {"k8s.io/initial-events-end": "true"}}}}`+"\n", kind, version) // the client has disconnected
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind": "%sList", "apiVersion": %q, "metadata": {"resourceVersion": "1"}, "items": []}`, kind, version)
	}
}

func (c *emptyCluster) serveLease(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Method != http.MethodGet {
		body, _ := io.ReadAll(r.Body) // an error leaves a Lease that no replica can read
		c.lease, c.contentType = string(body), r.Header.Get("Content-Type")
	}
	if c.lease == "" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
		return
	}
	w.Header().Set("Content-Type", c.contentType)
	_, _ = io.WriteString(w, c.lease)
}

// setHolder gives the Lease to another process, or to none.
func (c *emptyCluster) setHolder(identity string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.contentType = "application/json"
	c.lease = fmt.Sprintf(`{"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "lease"}, "spec": {
		"holderIdentity": %q, "leaseDurationSeconds": 3600, "renewTime": %q}}`, identity, time.Now().Format("2006-01-02T15:04:05.000000Z07:00"))
}

// start serves the cluster until the test ends, and returns the path of a kubeconfig.
func (c *emptyCluster) start(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}]}`,
		server.URL), 0o600))
	return file
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := freeport.Loopback()
	require.NoError(t, err)
	return strconv.Itoa(port)
}

// startCommand runs a command until the returned function is called, or until the test ends.
func startCommand(t *testing.T, cmd *cobra.Command, args ...string) (stop func()) {
	t.Helper()
	cmd.SetArgs(args)
	cmd.SilenceUsage = true
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return stop
}

// scrape returns the status and the body of a page, 0 if nothing listens.
func scrape(t *testing.T, network, address, path string) (status int, body string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, address)
	}}}
	response, err := client.Get("http://berth" + path)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(data)
}

// waitReady waits until /readyz has these lines.
func waitReady(t *testing.T, address, want string) {
	t.Helper()
	var body string
	require.Eventually(t, func() bool {
		_, body = scrape(t, "tcp", address, "/readyz")
		return body == want
	}, time.Minute, 10*time.Millisecond, "want %s", want)
}

// requireLines requires that the page has each line once.
func requireLines(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		require.Equal(t, 1, strings.Count("\n"+page, "\n"+line), "%q in\n%s", line, page)
	}
}

// TestControllersServeTheirMetricsAndState runs `berth controllers` and scrapes it on both of its endpoints.
func TestControllersServeTheirMetricsAndState(t *testing.T) {
	kubeconfig, port := new(emptyCluster).start(t), freePort(t)
	dir, err := os.MkdirTemp("", "berth") // short, because of the limit on sockets' paths
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "s")
	t.Setenv("HOME", dir)
	stop := startCommand(t, newControllers(), "--kubeconfig", kubeconfig, "--controllers", "provision,attachdetach,replicaset",
		"--attach-nodes", "pool=berth", "--node-name", "n1", "--local-volumes-dir", filepath.Join(dir, "volumes"),
		"--leader-election=false", "--metrics-address", port, "--socket", socket)
	address := "127.0.0.1:" + port
	waitReady(t, address, "[+]attachdetach ok\n[+]provision ok\n[+]replicaset ok\n")
	status, body := scrape(t, "tcp", address, "/healthz")
	require.Equal(t, http.StatusOK, status, body)
	for network, address := range map[string]string{"tcp": address, "unix": socket} {
		status, page := scrape(t, network, address, "/metrics")
		require.Equal(t, http.StatusOK, status)
		requireLines(t, page,
			`berth_expectations_keys{controller="replicaset-controller"} 0`,
			`workqueue_depth{name="replicaset-controller",priority="live"} 0`,
			`berth_controller_oldest_age_seconds{name="replicaset-controller"} 0`,
			`controller_persistentvolumeclaim_provision_waiting{provisioner="berth.dev/local"} 0`,
			`berth_stages_lost_total 0`)
	}
	stop()
	status, _ = scrape(t, "tcp", address, "/metrics")
	require.Zero(t, status, "the server ends with the command")
}

// TestStandbyIsReadyAndSaysThatItWaits runs a replica that waits for the Lease, and then gets it.
func TestStandbyIsReadyAndSaysThatItWaits(t *testing.T) {
	cluster, port := &emptyCluster{}, freePort(t)
	cluster.setHolder("another replica")
	startCommand(t, newControllers(), "--kubeconfig", cluster.start(t), "--controllers", "replicaset", "--metrics-address", port)
	address := "127.0.0.1:" + port
	waitState := func(line, metric string) {
		t.Helper()
		waitReady(t, address, line)
		require.Eventually(t, func() bool {
			_, page := scrape(t, "tcp", address, "/metrics")
			return strings.Contains(page, metric+"\n")
		}, time.Minute, 10*time.Millisecond, metric)
	}
	waitState("[+]replicaset ok: waiting for the Lease\n", `leader_election_master_status{name="berth-replicaset"} 0`)
	cluster.setHolder("")
	waitState("[+]replicaset ok\n", `leader_election_master_status{name="berth-replicaset"} 1`)
}

// TestCSIProvisionerServesItsMetricsAndState runs `berth csi-provisioner` with a driver, and scrapes it on both of its
// ports.
func TestCSIProvisionerServesItsMetricsAndState(t *testing.T) {
	dir, err := os.MkdirTemp("", "berth") // short, because of the limit on sockets' paths
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	driver := csidriver.Config{Endpoint: filepath.Join(dir, "csi.sock"), NodeID: "node", Root: filepath.Join(dir, "disks")}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- csidriver.Serve(ctx, csidriver.Deps{}, driver) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	port, metricsPort := freePort(t), freePort(t)
	startCommand(t, newCSIProvisioner(), "--kubeconfig", new(emptyCluster).start(t), "--csi-address", driver.Endpoint, "--leader-election",
		"--leader-election-namespace", "default", "--enable-capacity", "--enable-resizer",
		"--metrics-address", ":"+port, "--metrics-port", metricsPort)
	address := "127.0.0.1:" + port
	waitReady(t, address, "[+]csi "+csidriver.Name+" ok\n")
	require.Eventually(t, func() bool {
		_, page := scrape(t, "tcp", address, "/metrics")
		return strings.Contains(page, `workqueue_depth{name="resizer of csi.berth.dev",priority="live"} 0`) &&
			strings.Contains(page, `workqueue_depth{name="capacity of csi.berth.dev",priority="live"} 0`) &&
			strings.Contains(page, `leader_election_master_status{name="csi.berth.dev",provisioner="csi.berth.dev"} 1`)
	}, time.Minute, 10*time.Millisecond)
	waitReady(t, address, "[+]csi "+csidriver.Name+" ok\n")
	_, page := scrape(t, "tcp", address, "/metrics")
	requireLines(t, page, `controller_persistentvolumeclaim_provision_waiting{provisioner="csi.berth.dev"} 0`)
	_, page = scrape(t, "tcp", "127.0.0.1:"+metricsPort, "/metrics")
	requireLines(t, page, `controller_persistentvolumeclaim_provision_waiting 0`)
}

func TestMetricsAddressIsChecked(t *testing.T) {
	cmd := newControllers()
	cmd.SetArgs([]string{"--kubeconfig", new(emptyCluster).start(t), "--controllers", "replicaset", "--metrics-address", "localhost"})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(t.Context())
	require.ErrorAs(t, err, &usageError{})
	require.ErrorContains(t, err, `--metrics-address: metrics address "localhost": want HOST:PORT`)
}
