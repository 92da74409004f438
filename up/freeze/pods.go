package freeze

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"k8s.io/apimachinery/pkg/util/wait"
)

// freezer is the kernel's freezer of one cgroup: a file to write to, and one to read whether all stand still.
type freezer struct {
	control, freeze, thaw string // the file, and what is written to it
	state, frozen         string // the file, and the line of it that says so
}

// freezerOf returns the freezer of the cgroup; nil without any Pod. Where both versions of cgroups are mounted, it is that of v1, in which
// container runtimes put Pods then: what one of the two has frozen never stands still for the other.
func freezerOf(cgroup string, mounts []*mountinfo.Info) (found *freezer) {
	for _, mount := range mounts {
		dir := filepath.Join(mount.Mountpoint, cgroup)
		var candidate *freezer
		switch {
		case mount.FSType == "cgroup2" && found == nil:
			candidate = &freezer{
				control: filepath.Join(dir, "cgroup.freeze"), freeze: "1", thaw: "0", state: filepath.Join(dir, "cgroup.events"), frozen: "frozen 1",
			}
		case mount.FSType == "cgroup" && strings.Contains(","+mount.VFSOptions+",", ",freezer,"):
			file := filepath.Join(dir, "freezer.state")
			candidate = &freezer{control: file, freeze: "FROZEN", thaw: "THAWED", state: file, frozen: "FROZEN"}
		default:
			continue
		}
		if _, err := os.Stat(candidate.control); err == nil {
			found = candidate
		}
	}
	return found
}

func (t Target) freezer() (*freezer, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("find the kernel's freezer: %w", err)
	}
	return freezerOf(t.Cgroup, mounts), nil
}

// freezePods freezes the Pods and waits until they stand still.
func (t Target) freezePods(ctx context.Context) error {
	freezer, err := t.freezer()
	if freezer == nil {
		return err
	}
	err = wait.PollUntilContextCancel(ctx, checkPeriod, true, func(context.Context) (bool, error) {
		// cgroup v1 wants it again while processes are being created.
		if err := os.WriteFile(freezer.control, []byte(freezer.freeze), 0); err != nil {
			return false, err
		}
		return freezer.isFrozen()
	})
	if err != nil {
		return fmt.Errorf("freeze the Pods of %s: %w", t.Cgroup, err)
	}
	return nil
}

func (f *freezer) isFrozen() (bool, error) {
	data, err := os.ReadFile(f.state)
	for line := range strings.Lines(string(data)) {
		if strings.TrimSpace(line) == f.frozen {
			return true, nil
		}
	}
	return false, err
}

// thawPods lets the Pods continue.
func (t Target) thawPods() error {
	freezer, err := t.freezer()
	if freezer == nil {
		return err
	}
	if err := os.WriteFile(freezer.control, []byte(freezer.thaw), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("let the Pods of %s continue: %w", t.Cgroup, err)
	}
	return nil
}
