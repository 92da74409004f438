package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestCommandsOfAClusterThatDoesNotRun is about the commands that send their requests as the administrator.
func TestCommandsOfAClusterThatDoesNotRun(t *testing.T) {
	commands := [][]string{{"token", "create", "--print-join-command=false"}, {"token", "list"}, {"token", "delete", "abcdef"}, {"kubeconfig", "--user", "anna"}}
	dir := t.TempDir()
	for _, words := range commands {
		_, err := execute(t, append([]string{"--data-dir", dir}, words...)...)
		require.ErrorContains(t, err, "no cluster found in "+dir+": start one with `berth up`", "%v", words)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["berth"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["berth"] = &clientcmdapi.Context{Cluster: "berth"}
	config.CurrentContext = "berth"
	data, err := clientcmd.Write(*config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "admin.kubeconfig"), data, 0o600))
	for _, words := range commands {
		_, err := execute(t, append([]string{"--data-dir", dir}, words...)...)
		require.ErrorContains(t, err, "cannot be reached: is the cluster running?", "%v", words)
	}
}
