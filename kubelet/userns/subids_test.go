package userns_test

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"os/user"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/userns"
)

// TestDelegatedIDs has the ids of Pods that an administrator has delegated to the user kubelet.
func TestDelegatedIDs(t *testing.T) {
	missing := &exec.Error{Name: "getsubids", Err: exec.ErrNotFound}
	for name, test := range map[string]struct {
		user          error
		users, groups string
		program       error
		first         uint32
		want          string
	}{
		"no such user":   {user: user.UnknownUserError("kubelet"), first: 65536},
		"no database":    {user: errors.New("timeout"), want: "find the user kubelet: timeout"},
		"no program":     {program: missing, first: 65536},
		"a range":        {users: "0: kubelet 131072 655360\n", groups: "0: kubelet 131072 655360\n", first: 131072},
		"none delegated": {program: errors.New("exit status 1"), want: "delegate user IDs to it in /etc/subuid"},
		"two ranges":     {users: "0: kubelet 131072 65536\n1: kubelet 262144 65536\n", groups: "0: kubelet 131072 65536\n1: kubelet 262144 65536\n", want: "want one range"},
		"other groups":   {users: "0: kubelet 131072 655360", groups: "0: kubelet 65536 655360", want: "than in /etc/subgid"},
		"no number":      {users: "0: kubelet x 655360", groups: "0: kubelet x 655360", want: "invalid syntax"},
		"no multiple":    {users: "0: kubelet 100000 655360", groups: "0: kubelet 100000 655360", want: "want multiples of 65536"},
		"the node's own": {users: "0: kubelet 0 655360", groups: "0: kubelet 0 655360", want: "above 0"},
		"too few":        {users: "0: kubelet 131072 589824", groups: "0: kubelet 131072 589824", want: "has 9 blocks of 65536, and the node takes 10 Pods"},
	} {
		t.Run(name, func(t *testing.T) {
			m := userns.New(podsDir(t, "a"), 0, slog.New(slog.DiscardHandler))
			m.SetSubids(func(name string) error { return test.user }, func(_ context.Context, args ...string) (string, error) {
				if args[0] == "-g" {
					return test.groups, test.program
				}
				return test.users, test.program
			})
			err := m.Delegate(t.Context(), 10)
			if test.want != "" {
				require.ErrorContains(t, err, test.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.first, hostID(t, m, "a"))
		})
	}
}

// TestBlocksEndWithTheRange gives two Pods all that is delegated; the Pods of an earlier range keep theirs.
func TestBlocksEndWithTheRange(t *testing.T) {
	dir := podsDir(t, "old", "a", "b", "c")
	require.EqualValues(t, 65536, hostID(t, userns.New(dir, 0, slog.New(slog.DiscardHandler)), "old"))
	m := userns.New(dir, 0, slog.New(slog.DiscardHandler))
	m.SetSubids(func(string) error { return nil }, func(context.Context, ...string) (string, error) { return "0: kubelet 655360 131072", nil })
	require.NoError(t, m.Delegate(t.Context(), 2))
	require.EqualValues(t, 65536, hostID(t, m, "old"))
	require.EqualValues(t, 655360, hostID(t, m, "a"))
	require.EqualValues(t, 720896, hostID(t, m, "b"))
	_, err := m.Ensure("c")
	require.ErrorContains(t, err, "all 2 blocks of ids are in use")
}
