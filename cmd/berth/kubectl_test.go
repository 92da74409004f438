package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatKubectlNeeds(t *testing.T) {
	for line, want := range map[string]need{
		"":                                  needsNothing,
		"--help":                            needsNothing,
		"get pods -h":                       needsNothing,
		"help get":                          needsNothing,
		"version --client":                  needsNothing,
		"version --client=true -o json":     needsNothing,
		"version --client=false":            needsCluster,
		"version":                           needsCluster,
		"completion bash":                   needsNothing,
		"-n completion get pods":            needsCluster,
		"-n completion completion bash":     needsNothing,
		"--namespace=x -v 6 completion zsh": needsNothing,
		"get completion":                    needsCluster,
		"options":                           needsNothing,
		"plugin list":                       needsNothing,
		"kustomize .":                       needsNothing,
		"kuberc view":                       needsNothing,
		"__complete get pods ":              needsNothing,
		"label --local -f pod.yaml a=b":     needsNothing,
		"label -f pod.yaml a=b":             needsCluster,
		"create deployment x --dry-run=client --image=y":   needsNothing,
		"create configmap x --from-literal=a=b":            needsCluster,
		"create cm x --from-file=f --dry-run=client":       needsNothing,
		"create job x --from=cronjob/y --dry-run=client":   needsCluster,
		"create -f pod.yaml --dry-run=client":              needsCluster,
		"create -fpod.yaml --dry-run=client":               needsCluster,
		"create --filename=pod.yaml --dry-run=client":      needsCluster,
		"run x --image=y --dry-run=client":                 needsCluster,
		"apply -f x --dry-run=client":                      needsCluster,
		"exec pod -- sh --help":                            needsCluster,
		"config view":                                      needsKubeconfig,
		"config view --kubeconfig=other":                   hasKubeconfigFlag,
		"--kubeconfig other get pods":                      hasKubeconfigFlag,
		"exec pod -- berth kubectl --kubeconfig=other get": needsCluster,
	} {
		require.Equal(t, want, needOf(strings.Fields(line)), "kubectl %s", line)
	}
}

// TestKubectlWithoutACluster is about data directories that hold none, or one whose state cannot be read.
func TestKubectlWithoutACluster(t *testing.T) {
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "cluster.json"), []byte("{"), 0o600))
	for dir, refusal := range map[string]string{filepath.Join(t.TempDir(), "absent"): "no cluster found in", broken: "is damaged"} {
		for _, line := range []string{"version --client", "completion bash", "get --help"} {
			t.Setenv("KUBECONFIG", "of/another/cluster")
			t.Setenv(dataDirVariable, "elsewhere")
			_, err := execute(t, append([]string{"--data-dir", dir, "kubectl"}, strings.Fields(line)...)...)
			require.ErrorContains(t, err, "start kubectl", "which is not beside this test: %s", line)
			require.Equal(t, filepath.Join(dir, "admin.kubeconfig"), os.Getenv("KUBECONFIG"), "no other cluster by mistake")
			require.Equal(t, dir, os.Getenv(dataDirVariable))
		}
		for _, line := range []string{"get pods", "config view", "version"} {
			_, err := execute(t, append([]string{"--data-dir", dir, "kubectl"}, strings.Fields(line)...)...)
			require.ErrorContains(t, err, refusal, "%s", line)
		}
	}
}
