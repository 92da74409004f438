package cadvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/cm"
)

// testCgroups returns the directories of a new cgroup in all hierarchies that the test may write to. It ends with the test.
func testCgroups(t *testing.T) (name string, dirs []string) {
	hierarchies, err := cm.FindHierarchies()
	require.NoError(t, err)
	name = fmt.Sprintf("/berth-test-cadvisor-%d", os.Getpid())
	for _, h := range hierarchies {
		dir := filepath.Join(h.Dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("the test cannot create cgroups: %v", err)
		}
		t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
		dirs = append(dirs, dir)
	}
	return name, dirs
}

// createAndRemove creates and removes a cgroup below the directories, in one hierarchy after the other, as runtimes do.
func createAndRemove(dirs []string, name string) error {
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	for _, dir := range slices.Backward(dirs) {
		errs = append(errs, os.Remove(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

func TestAListingLeavesOutCgroupsThatEndMeanwhile(t *testing.T) {
	const listings = 60
	name, dirs := testCgroups(t)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := createAndRemove(dirs, "short"); err != nil {
				ended <- err
				return
			}
		}
	}()
	local := NewLocal(clock.RealClock{})
	var failed error
	for range listings {
		infos, err := local.SubcontainerInfo(name, nil)
		if failed = err; err != nil {
			break
		}
		require.Contains(t, infos, name)
	}
	close(stop)
	require.NoError(t, <-ended)
	require.NoError(t, failed)
}
