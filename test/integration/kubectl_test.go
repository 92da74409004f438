//go:build integration

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKubectlWithoutACluster runs kubectl commands that need no cluster.
func TestKubectlWithoutACluster(t *testing.T) {
	berth, absent := berthBinary(t), filepath.Join(t.TempDir(), "absent")
	manifest := filepath.Join(t.TempDir(), "pod.yaml")
	require.NoError(t, os.WriteFile(manifest, []byte(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
		"spec": {"containers": [{"name": "c", "image": "i"}]}}`), 0o600))
	kubectl := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), berth, append([]string{"--data-dir", absent, "kubectl"}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "kubectl %q: %s", args, out)
		require.NotContains(t, string(out), "berth:", "kubectl %q", args)
		require.NotContains(t, string(out), "refused", "kubectl %q", args)
		return string(out)
	}
	for _, args := range [][]string{
		{}, {"--help"}, {"get", "-h"}, {"help", "get"}, {"version", "--client"}, {"completion", "bash"}, {"kuberc", "--help"},
		{"kustomize", "--help"}, {"__complete", "ge"}, {"label", "--local", "-f", manifest, "a=b"},
		{"set", "image", "--local", "-f", manifest, "c=j"},
		{"create", "deployment", "x", "--image=y", "--dry-run=client", "-o", "yaml"},
	} {
		kubectl(args...)
	}
	// Every flag with a value in the next argument is known.
	flags := regexp.MustCompile(`(?m)^ +(?:(-\w), )?(--[\w-]+)=(\S*):$`).FindAllStringSubmatch(kubectl("options"), -1)
	require.Greater(t, len(flags), 20, "the format of kubectl's list of flags has changed")
	for _, flag := range flags {
		if flag[3] == "true" || flag[3] == "false" {
			continue
		}
		for _, name := range flag[1:3] {
			if name == "" {
				continue
			}
			cmd := exec.CommandContext(t.Context(), berth, "--data-dir", absent, "kubectl", name, "config", "completion", "bash")
			cmd.Dir = t.TempDir() // some flags name files
			out, err := cmd.CombinedOutput()
			require.NotContains(t, string(out), "no cluster found", "kubectl %s: %v", name, err)
		}
	}
	require.NoDirExists(t, absent)
	out, err := exec.CommandContext(t.Context(), berth, "--data-dir", absent, "kubectl", "get", "pods").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no cluster found in "+absent)
}
