//go:build integration

package integration

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// certificateLife is that of the test's cluster: a third of it has to suffice for a renewal and for one request, on a busy machine.
const certificateLife = 30 * time.Second

// TestCertificatesAreRenewedWhileTheClusterRuns runs a cluster whose certificates are valid for half a minute, until all of the first ones
// have ended, and then uses the components. None was started again, and none was refused.
func TestCertificatesAreRenewedWhileTheClusterRuns(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := newIsolatedCluster(t)
	c.up("--unsafe-no-fsync", "--certificate-lifetime", certificateLife.String())
	importShell(t, c)
	c.apply(serverPod("client", "client", "exec /bin/busybox sleep 1000000"))
	c.waitPod("app=client", "ready", isReady)
	page := c.openPage(t)
	before := c.insidePIDs(t)
	_, ends := c.servingCertificate(t)

	// Each client loads a renewed certificate within a twelfth of a life.
	require.NoError(t, c.poll(func(context.Context) bool {
		begin, _ := c.servingCertificate(t)
		return begin.After(ends.Add(certificateLife / 6)) // the second renewal, and the first certificates are of no use
	}), "the certificate of the API server is not renewed")

	c.apply(strings.Replace(diskManifest, "%s", shell("echo kept > /disk/file; exec /bin/busybox sleep 1000000",
		`"name": "writer", "volumeMounts": [{"name": "disk", "mountPath": "/disk"}]`), 1))
	c.waitPod("name=writer", "ready", isReady) // provisioner, scheduler, kubelet
	c.mustRun("kubectl", "create", "deployment", "web", "--image="+shellImage, "--", "/bin/busybox", "sh", "-c",
		"mkdir /w; echo served > /w/index.html; exec /bin/busybox httpd -f -p 8080 -h /w")
	c.mustRun("kubectl", "patch", "deployment", "web", "--type=json", "-p",
		`[{"op": "add", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "Never"}]`)
	c.mustRun("kubectl", "rollout", "status", "deployment/web", "--timeout=2m") // controller manager, ReplicaSet controller
	// From the API server to the kubelet, and to its statistics. The API server closes its connections to kubelets when it loads its renewed
	// client certificate, each third of a life, which may be in the middle of one request.
	for _, args := range [][]string{{"get", "--raw", "/api/v1/nodes/" + homeNode + "/proxy/healthz"}, {"top", "node"}} {
		var out string
		require.NoError(t, c.poll(func(context.Context) bool {
			var err error
			out, err = c.run(append([]string{"kubectl"}, args...)...)
			return err == nil
		}), "kubectl %s: %s", args, out)
	}
	c.mustRun("kubectl", "expose", "deployment", "web", "--port=80", "--target-port=8080")
	var served string
	require.NoError(t, c.poll(func(context.Context) bool { // DNS and kube-proxy know it by renewed certificates
		var err error
		served, err = c.run("kubectl", "exec", "client", "--", "/bin/busybox", "wget", "-q", "-O", "-", "http://web.default.svc.cluster.local")
		return err == nil && served == "served\n"
	}), "the new Service: %s", served)
	require.NotContains(t, page("/pod/default/client"), "Not seen", "the page that is open may read no more")
	require.Equal(t, before, c.insidePIDs(t), "a process was started again")
	for _, log := range []string{"berth", "controlplane", "kube-proxy", "dns"} {
		content, err := os.ReadFile(filepath.Join(c.dataDir, "log", log+".log"))
		require.NoError(t, err)
		for line := range strings.Lines(string(content)) {
			require.NotContains(t, line, "Unauthorized", log)
			require.NotContains(t, line, "certificate has expired", log)
		}
	}
	c.mustRun("kubectl", "delete", "deployment,service", "web")
	c.stop()
	require.Empty(t, c.leftovers())
}

var seeItLine = regexp.MustCompile(`see it\s+(http://\S+)`)

// openPage opens the cluster's page, as a browser does that stays open until the test ends, and returns what fetches other pages.
func (c *cluster) openPage(t *testing.T) (fetch func(path string) string) {
	t.Helper()
	link := seeItLine.FindStringSubmatch(c.out.String())
	require.NotNil(t, link, "no link to the page in:\n%s", c.out)
	cookies, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{Proxy: nil}, Jar: cookies}
	t.Cleanup(client.CloseIdleConnections)
	getBy(t, client, link[1])
	base, _, _ := strings.Cut(link[1], "/?")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/events?page=%2F", http.NoBody)
	require.NoError(t, err)
	updates, err := client.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { updates.Body.Close() })
	require.Equal(t, http.StatusOK, updates.StatusCode)
	return func(path string) string { return getBy(t, client, base+path) }
}

// servingCertificate returns when the API server's certificate begins and ends. It begins an hour before it was made.
func (c *cluster) servingCertificate(t *testing.T) (made, end time.Time) {
	t.Helper()
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)))
	require.NoError(t, err)
	defer conn.Close()
	leaf := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	return leaf.NotBefore.Add(time.Hour), leaf.NotAfter
}

// insidePIDs returns the content of the pid files of an isolated cluster by their names.
func (c *cluster) insidePIDs(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.runDir(), "*.inside-pid"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	pids := make(map[string]string)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		pids[filepath.Base(file)] = string(content)
	}
	return pids
}
