package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/usercert"
)

func TestKubeconfigNamesTheServerOfOtherMachines(t *testing.T) {
	admin := clientcmdapi.NewConfig()
	admin.Clusters["berth"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:6443"}
	admin.Contexts["berth"] = &clientcmdapi.Context{Cluster: "berth"}
	admin.CurrentContext = "berth"
	for _, test := range []struct{ address, flag, want string }{
		{"", "", "https://127.0.0.1:6443"},
		{"192.0.2.10", "", "https://192.0.2.10:6443"},
		{"192.0.2.10,2001:db8::10", "", "https://192.0.2.10:6443"},
		{"192.0.2.10,2001:db8::10", "https://cluster.example.com", "https://cluster.example.com"},
	} {
		f := kubeconfigFlags{identity: usercert.Identity{User: "anna"}, server: test.flag}
		data, err := f.encode(up.Layout{Config: up.Config{APIAddress: test.address, APIPort: 6443}}, admin, usercert.Certificate{})
		require.NoError(t, err)
		config, err := clientcmd.Load(data)
		require.NoError(t, err)
		require.Equal(t, test.want, config.Clusters["berth"].Server, "%+v", test)
	}
}

func TestKubeconfigIsWrittenWhereOutputSays(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, output := range []string{"", "-", "file"} {
		var out bytes.Buffer
		require.NoError(t, (&kubeconfigFlags{output: output}).write(&out, []byte("text")))
		require.Equal(t, output != "file", out.Len() > 0, "--output %q", output)
	}
	files, err := filepath.Glob("*")
	require.NoError(t, err)
	require.Equal(t, []string{"file"}, files)
	info, err := os.Stat("file")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}
