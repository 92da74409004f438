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
		"":                                  nothing,
		"--help":                            nothing,
		"get pods -h":                       nothing,
		"help get":                          nothing,
		"version --client":                  nothing,
		"version --client=true -o json":     nothing,
		"version --client=false":            answers,
		"version":                           answers,
		"completion bash":                   nothing,
		"-n completion get pods":            answers,
		"-n completion completion bash":     nothing,
		"--namespace=x -v 6 completion zsh": nothing,
		"get completion":                    answers,
		"options":                           nothing,
		"plugin list":                       nothing,
		"kustomize .":                       nothing,
		"kuberc view":                       nothing,
		"__complete get pods ":              nothing,
		"label --local -f pod.yaml a=b":     nothing,
		"label -f pod.yaml a=b":             answers,
		"create deployment x --dry-run=client --image=y":   nothing,
		"create configmap x --from-literal=a=b":            answers,
		"create cm x --from-file=f --dry-run=client":       nothing,
		"create job x --from=cronjob/y --dry-run=client":   answers,
		"create -f pod.yaml --dry-run=client":              answers,
		"create -fpod.yaml --dry-run=client":               answers,
		"create --filename=pod.yaml --dry-run=client":      answers,
		"run x --image=y --dry-run=client":                 answers,
		"apply -f x --dry-run=client":                      answers,
		"exec pod -- sh --help":                            answers,
		"config view":                                      kubeconfig,
		"config view --kubeconfig=other":                   named,
		"--kubeconfig other get pods":                      named,
		"exec pod -- berth kubectl --kubeconfig=other get": answers,
	} {
		require.Equal(t, want, needOf(strings.Fields(line)), "kubectl %s", line)
	}
}

// TestKubectlWithoutACluster is about data directories that hold none, or one whose state cannot be read.
func TestKubectlWithoutACluster(t *testing.T) {
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "cluster.json"), []byte("{"), 0o600))
	for dir, refusal := range map[string]string{filepath.Join(t.TempDir(), "absent"): "there is no cluster in", broken: "is damaged"} {
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
