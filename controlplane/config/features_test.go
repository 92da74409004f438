package config

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	_ "k8s.io/kubernetes/pkg/features" // registers the gates
)

// TestFeatureGates compares docs/features.md with the gates of the release of Kubernetes that is built here: their stages and
// defaults, and that each gate that the kubelet's own code asks for is in the table.
func TestFeatureGates(t *testing.T) {
	content, err := os.ReadFile("../../docs/features.md")
	require.NoError(t, err)
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	listed := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| (on|off) \\|")
	for _, match := range row.FindAllStringSubmatch(string(content), -1) {
		name := match[1]
		listed[name] = true
		spec, found := known[featuregate.Feature(name)]
		require.True(t, found, "Kubernetes has no gate %s", name)
		require.Equal(t, stage(spec), match[2], name)
		require.Equal(t, spec.Default, match[3] == "on", name)
	}
	for _, name := range kubeletGates(t) {
		if _, isGate := known[featuregate.Feature(name)]; isGate {
			require.True(t, listed[name], "docs/features.md does not have %s, which the kubelet asks for", name)
		}
	}
}

// stage returns the stage of a gate as the table has it.
func stage(spec featuregate.FeatureSpec) string {
	switch spec.PreRelease {
	case featuregate.GA:
		return "GA"
	case featuregate.Deprecated:
		return "Deprecated"
	case featuregate.Beta:
		return "Beta"
	default:
		return "Alpha"
	}
}

// kubeletGates returns the names of what the kubelet's packages use of the packages of gates.
func kubeletGates(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	require.NoError(t, err)
	use := regexp.MustCompile(`\b(?:kube)?features\.([A-Z]\w+)`)
	var names []string
	for _, dir := range []string{"pkg/kubelet", "cmd/kubelet"} {
		err := filepath.WalkDir(filepath.Join(strings.TrimSpace(string(out)), dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, match := range use.FindAllStringSubmatch(string(source), -1) {
				names = append(names, match[1])
			}
			return err
		})
		require.NoError(t, err)
	}
	require.Greater(t, len(names), 100, "the kubelet's sources are not found")
	return names
}
