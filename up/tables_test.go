package up

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testnet"
)

// TestKubeProxyIsStartedAgainWithoutItsTables has the real nft, in a network of its own.
func TestKubeProxyIsStartedAgainWithoutItsTables(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	if testnet.RunInNew(t) {
		return
	}
	nft := func(script string) {
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", script, out)
	}
	const tables = "add table ip kube-proxy\nadd table ip6 kube-proxy\nadd table ip other\nadd chain ip kube-proxy services\n"
	start := func(adopted bool) (ended chan error, stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended = make(chan error, 1)
		guarded := guardProxyTables(func(ctx context.Context) error { <-ctx.Done(); return nil }, adopted, slog.New(slog.DiscardHandler))
		go func() { ended <- guarded(ctx) }()
		return ended, cancel
	}
	for name, removal := range map[string]string{
		"all tables": "flush ruleset", "that of IPv4": "delete table ip kube-proxy", "that of IPv6": "delete table ip6 kube-proxy",
	} {
		nft(tables)
		ended, stop := start(true)
		// What concerns others, and a table that is made again at once, change nothing.
		nft("delete table ip other\ndelete chain ip kube-proxy services\n")
		nft("delete table ip kube-proxy\nadd table ip kube-proxy\n")
		for isRunning := true; isRunning; {
			nft(tables + removal) // the watch may not have begun
			select {
			case err := <-ended:
				require.ErrorIs(t, err, errProxyTablesRemoved, name)
				isRunning = false
			default:
			}
		}
		stop()
	}

	nft("flush ruleset")
	ended, stop := start(true)
	require.ErrorIs(t, <-ended, errProxyTablesRemoved, "it had been running, and they were removed while nothing watched")
	stop()
	ended, stop = start(false)
	stop()
	require.NoError(t, <-ended, "one that has just started has not written them yet")

	failed := errors.New("failed")
	require.ErrorIs(t, guardProxyTables(func(context.Context) error { return failed }, false, slog.New(slog.DiscardHandler))(t.Context()), failed)
}

// TestLostEventsMayBeThoseOfKubeProxysTables has a watch that reports that something was deleted, but not what.
func TestLostEventsMayBeThoseOfKubeProxysTables(t *testing.T) {
	table, other := nftTable{"ip", proxyTable}, nftTable{"ip", "other"}
	removed := removedTables{table: false}
	require.False(t, removed.areMissing(nil), "kube-proxy has not made it yet")
	require.False(t, removed.areMissing(map[nftTable]bool{table: true, other: true}))
	require.True(t, removed.areMissing(map[nftTable]bool{other: true}))
}
