package agent

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	fakeclient "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/kubelet/certificate"
)

// TestMetricsAreThoseOfUpstream compares the names and labels of the metrics with Kubernetes' own list of its kubelet's, which
// conformance/cmd/kubeletfacts has written. docs/nodes.md says which are missing, and why. Those of /metrics/resource have a test of
// their own in kubelet/stats, and a library of Kubernetes serves those of /metrics/slis.
func TestMetricsAreThoseOfUpstream(t *testing.T) {
	f := newFixture(t, func(d *Deps, c *Config) {
		d.Runtime, c.Runtime.Endpoint = nil, "unix://"+filepath.Join(t.TempDir(), "none.sock")
		d.Client = fakeclient.NewClientset()
		c.Images.CredentialProviders, c.Images.CredentialProvidersDir = credentialProviders(t)
	})
	client, err := certificate.NewClient(certificate.Deps{Clientset: certificate.FixedClient(nil)}, certificate.Config{NodeName: "n", Dir: t.TempDir()})
	require.NoError(t, err)
	serving, err := certificate.NewServing(certificate.Deps{Clientset: certificate.FixedClient(nil)},
		certificate.Config{NodeName: "n", Dir: t.TempDir(), DNSNames: []string{"n"}})
	require.NoError(t, err)
	served := map[string]string{}
	for path, collectors := range map[string][]prometheus.Collector{
		"/metrics": {f.agent.base.metrics.main, client.Metrics(), serving.Metrics()}, "/metrics/probes": {f.agent.base.metrics.probes},
	} {
		descs := make(chan *prometheus.Desc)
		go func() {
			defer close(descs)
			for _, collector := range collectors {
				collector.Describe(descs)
			}
		}()
		for desc := range descs {
			name, labels := parseDesc(t, desc)
			served[path+" "+name] = labels
		}
	}
	for name, labels := range ofLibraries(t) {
		served["/metrics "+name] = labels
	}
	document, err := os.ReadFile("../../docs/nodes.md")
	require.NoError(t, err)
	list, err := os.ReadFile("testdata/metrics.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(list)) {
		words := append(strings.Fields(line), "")
		if words[0] == "/metrics/resource" || words[0] == "/metrics/slis" {
			continue
		}
		labels, has := served[words[0]+" "+words[1]]
		documented := strings.Contains(string(document), "`"+words[1]+"`")
		switch {
		case !has && !documented:
			t.Errorf("missing, and not in docs/nodes.md: %s", line)
		case has && labels != words[2]:
			t.Errorf("%s has the labels %q, want %q", words[1], labels, words[2])
		}
	}
}

// credentialProviders writes a configuration of image credentials with one program, and returns it and the program's directory.
func credentialProviders(t *testing.T) (file, dir string) {
	dir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "program"), nil, 0o700))
	file = filepath.Join(dir, "providers.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: program\n" +
		"  matchImages: [example.com]\n  defaultCacheDuration: 1m\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file, dir
}

// descPattern matches the name, the constant and the variable labels in the text of a prometheus.Desc, which has no accessors.
var descPattern = regexp.MustCompile(`fqName: "([^"]*)".*constLabels: \{(.*)\}, variableLabels: \{([^}]*)\}`)

// parseDesc returns the name and the sorted labels of a metric.
func parseDesc(t *testing.T, desc *prometheus.Desc) (name, labels string) {
	match := descPattern.FindStringSubmatch(desc.String())
	require.NotNil(t, match, desc.String())
	var all []string
	for _, one := range strings.Split(match[2], ",") {
		all = append(all, strings.SplitN(one, "=", 2)[0])
	}
	all = append(all, strings.Split(match[3], ",")...)
	all = slices.DeleteFunc(all, func(s string) bool { return s == "" })
	slices.Sort(all)
	return match[1], strings.Join(all, ",")
}

// ofLibraries returns the metrics that the libraries of Kubernetes have in the process after a request.
func ofLibraries(t *testing.T) map[string]string {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	_, err = client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	require.Error(t, err)
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	found := map[string]string{}
	for _, family := range families {
		var labels []string
		for _, label := range family.Metric[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		slices.Sort(labels)
		found[family.GetName()] = strings.Join(labels, ",")
	}
	return found
}
