package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up/containerd"
)

// TestTheNetworkOfARunIsItsOwn compares it with the network of the loopback interface, which every machine has.
func TestTheNetworkOfARunIsItsOwn(t *testing.T) {
	for name, test := range map[string]struct {
		pods, bridge string
		fails, warns string
	}{
		"free":             {pods: "198.51.100.0/24"},
		"the same":         {pods: "127.0.0.0/8", fails: "of interface lo: choose another range"},
		"its own, earlier": {pods: "127.0.0.0/8", bridge: "lo"},
		"a part":           {pods: "127.87.0.0/24", warns: "warning: this machine cannot reach 127.87.0.0/24 by interface lo while the Pod runs"},
	} {
		t.Run(name, func(t *testing.T) {
			said := ""
			err := checkPodNetwork(containerd.Config{PodCIDR: netip.MustParsePrefix(test.pods), Bridge: test.bridge},
				func(format string, args ...any) { said += fmt.Sprintf(format, args...) })
			if test.fails == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.fails)
			}
			if test.warns == "" {
				require.Empty(t, said)
			} else {
				require.Contains(t, said, test.warns)
			}
		})
	}
}

func TestALockOfARunThatIsLeftIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	unlock, err := lockDir(dir, "busy")
	require.NoError(t, err)
	_, err = lockDir(dir, "busy")
	require.ErrorContains(t, err, "busy by another berth run")
	require.NoError(t, unlock())
	require.NoDirExists(t, dir)

	unlock, err = lockDir(dir, "busy")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "of-a-pod-that-runs-on"), nil, 0o600))
	require.NoError(t, unlock())
	require.NoFileExists(t, dir+".lock")

	unlock, err = lockDir(dir, "busy")
	require.NoError(t, err)
	require.NoError(t, os.Remove(dir+".lock"))
	require.NoError(t, os.MkdirAll(dir+".lock/file", 0o700)) // which cannot be removed, as no file on a read-only file system
	require.ErrorContains(t, unlock(), "clean up after the run: remove "+dir+".lock")
}
