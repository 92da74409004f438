package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-dev/berth/containers/shim/container"
	"github.com/berth-dev/berth/containers/shim/task"
)

// Delete removes what is left of a container whose shim has died, or is gone after its orderly removal, and returns the response for
// containerd. The exit code is what the shim has saved, else that of a killed process.
func (c Call) Delete() ([]byte, error) {
	bundle := c.Bundle
	if bundle == "" {
		cwd, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		bundle = filepath.Join(filepath.Dir(cwd), c.ID)
	}
	if saved, err := os.ReadFile(filepath.Join(bundle, task.DeletedFile)); err == nil {
		return saved, nil
	}
	var runtimeOptions options.Options
	data, err := os.ReadFile(filepath.Join(bundle, task.OptionsFile))
	if err == nil {
		err = json.Unmarshal(data, &runtimeOptions)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) { // not there: nothing was created
		return nil, fmt.Errorf("read the runtime's options: %w", err)
	}
	if err := container.Remove(task.Root(&runtimeOptions, c.Namespace), c.ID); err != nil {
		logrus.WithError(err).WithField("id", c.ID).Warn("failed to remove a container whose shim has died")
	}
	ended := time.Now()
	if err := mount.UnmountRecursive(filepath.Join(bundle, "rootfs"), 0); err != nil {
		logrus.WithError(err).WithField("id", c.ID).Warn("failed to unmount a container's root")
	}
	if saved, err := os.ReadFile(filepath.Join(bundle, task.ExitFile)); err == nil {
		return saved, nil
	}
	return proto.Marshal(&api.DeleteResponse{ExitStatus: 128 + uint32(unix.SIGKILL), ExitedAt: timestamppb.New(ended)})
}
