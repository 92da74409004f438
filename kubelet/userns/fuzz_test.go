package userns_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/userns"
)

// FuzzRecord starts with an arbitrary record of a Pod's user namespace: another Pod gets ids of its own, never those of the machine.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`))
	f.Add([]byte(`{"uidMappings":[{"hostId":4294967295,"containerId":0,"length":65536}],"gidMappings":[{"hostId":4294967295,"containerId":0,"length":65536}]}`))
	f.Add([]byte(`{"uidMappings":[{"hostId":4294901760,"length":65536}],"gidMappings":[{"hostId":4294901760,"length":65536}]}`))
	f.Add([]byte(`null`))
	proc := f.TempDir() // without processes
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := podsDir(t, "a", "b")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "userns"), content, 0o600))
		ns, err := userns.NewWithProc(dir, proc).Ensure("b")
		require.NoError(t, err)
		require.GreaterOrEqual(t, ns.Uids[0].HostId, uint32(65536))
	})
}
