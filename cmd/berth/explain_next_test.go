package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up"
)

// TestTheNextCommandIsForTheClusterThatWasAsked: it is to be copied as it stands.
func TestTheNextCommandIsForTheClusterThatWasAsked(t *testing.T) {
	layoutIn := func(dir string) up.Layout {
		layout, err := complete(up.Config{DataDir: dir})
		require.NoError(t, err)
		return layout
	}
	own, second := layoutIn(up.DefaultDataDir), layoutIn(t.TempDir())
	const get, pod = "berth kubectl -n shop get pvc", "berth explain pod/x -n shop"
	for name, test := range map[string]struct {
		flags      explainFlags
		kubeconfig string // the environment's
		get, pod   string
	}{
		"berth's own":    {explainFlags{layout: own}, "", own.Hint("kubectl -n shop get pvc"), own.Hint("explain pod/x -n shop")},
		"of a directory": {explainFlags{layout: second}, "", second.Hint("kubectl -n shop get pvc"), second.Hint("explain pod/x -n shop")},
		"of a kubeconfig": {explainFlags{layout: own, kubeconfig: "my f", context: "c", socket: "s"}, "",
			own.Hint("kubectl --kubeconfig 'my f' --context c -n shop get pvc"),
			own.Hint("explain --kubeconfig 'my f' --context c --socket s pod/x -n shop")},
		"as a plugin": {explainFlags{layout: own, plugin: true, context: "c"}, "f",
			"kubectl --context c -n shop get pvc", "kubectl why --context c pod/x -n shop"},
		"as a plugin of `berth kubectl`": {explainFlags{layout: second, plugin: true}, second.AdminKubeconfig(),
			second.Hint("kubectl -n shop get pvc"), second.Hint("explain pod/x -n shop")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", test.kubeconfig)
			require.Equal(t, test.get, test.flags.forThisCluster(get))
			require.Equal(t, test.pod, test.flags.forThisCluster(pod))
			require.Empty(t, test.flags.forThisCluster(""))
		})
	}
	require.Contains(t, second.Hint("x"), "--data-dir "+second.DataDir)
	spaced := layoutIn(filepath.Join(t.TempDir(), "the data"))
	require.Contains(t, spaced.Hint("x"), "--data-dir '"+spaced.DataDir+"' x", "a shell must read it as one word")
}
