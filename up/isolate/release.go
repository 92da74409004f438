package isolate

import (
	"context"
	"errors"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/up/removal"
	"github.com/berth-dev/berth/volume/blockpin"
)

// release removes what the kernel does not remove with the last process: loop devices, cgroups and the run directory. It
// removes what is left in the namespaces of the caller, and may run in both. With a user namespace nothing is left: loop devices and
// cgroups need root, and the run directory is on a file system of the cluster's.
func (c Config) release(ctx context.Context) error {
	if c.UserNamespace {
		return nil
	}
	return errors.Join(
		blockpin.New(blockpin.Deps{}).UnpinBelow(ctx, c.DataDir), // first, because they are found by their mounts
		removal.UnmountBelow(c.RunDir),
		loopdev.New().DetachBelow(c.DataDir),
		removal.Cgroups(ctx, c.Cgroup),
		removal.Tree(c.RunDir),
	)
}
