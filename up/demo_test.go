package up

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/up/supervised"
	"github.com/berth-dev/berth/up/supervisor"
)

// TestADemoThatFailsEndsNoNode has a demo that cannot be applied, in a cluster that is ready.
func TestADemoThatFailsEndsNoNode(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	require.NoError(t, json.NewEncoder(theirs).Encode(supervisor.Hello{Task: supervisor.TaskRun}))
	link, err := supervised.Open(ours)
	require.NoError(t, err)
	c, err := New(Deps{Progress: link}, RunConfig{Layout: testLayout(t), Demo: true, Without: []string{proxyName, dnsName}})
	require.NoError(t, err)
	c.link = link
	require.NoError(t, c.reportReady(t.Context()), "the node runs on")
	up := false
	for requests := json.NewDecoder(theirs); ; {
		var request supervisor.Request
		require.NoError(t, requests.Decode(&request))
		switch request.Kind {
		case supervisor.KindUp:
			up = true
		case supervisor.KindFailed:
			require.Equal(t, "demo", request.Name)
			require.Contains(t, request.Text, "kubeconfig")
			require.True(t, up, "the cluster is ready before the demo")
			return
		}
	}
}
