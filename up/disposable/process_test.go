package disposable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadyIsSeenOnceItIsPrinted(t *testing.T) {
	var seen []string
	l := &lines{onLine: func(line string) { seen = append(seen, line) }, ready: make(chan struct{})}
	for _, part := range []string{"etcd  ready\nKubernetes v1 is rea", "dy af"} {
		_, err := l.Write([]byte(part))
		require.NoError(t, err)
		require.Len(t, seen, 1)
	}
	_, err := l.Write([]byte("ter 1.5 s.\nKubernetes is ready after\n"))
	require.NoError(t, err)
	<-l.ready
	require.Equal(t, []string{"etcd  ready", "Kubernetes v1 is ready after 1.5 s.", "Kubernetes is ready after"}, seen)
}

// TestClustersDoNotReadTheMachinesConfiguration runs a program that prints its arguments in the place of berth.
func TestClustersDoNotReadTheMachinesConfiguration(t *testing.T) {
	config := Config{Args: []string{"--api-only"}}
	printed := make(chan string, 1)
	p, err := startProcess("/bin/echo", config.arguments("/data", []string{"--from", "base"}), func(line string) { printed <- line })
	require.NoError(t, err)
	<-p.ended
	require.Equal(t, "--data-dir /data up --config  --isolated --api-port 0 --unsafe-no-fsync --node-name node --from base --api-only", <-printed)
	require.ErrorContains(t, p.waitReady(t.Context()), "berth up ended (<nil>) before the cluster was ready")
}
