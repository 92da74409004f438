package up

import (
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/eviction"
)

// evictionConfig returns the settings of eviction. The thresholds of Kubernetes are a tenth of a disk and more, which is for the
// disks of servers; here EnoughFreeBytes are enough, whatever the size of the disk.
func (c *Cluster) evictionConfig() eviction.Config {
	if c.Eviction.Hard != nil {
		return c.Eviction
	}
	config := c.Eviction.WithDefaults()
	for signal, dir := range map[eviction.Signal]string{eviction.NodeFsAvailable: c.KubeletDir(), eviction.ImageFsAvailable: c.ContainerdRoot()} {
		size, err := diskSize(dir)
		if err != nil {
			c.logger.Warn("failed to measure a disk for eviction; using the threshold of Kubernetes", "signal", signal, "error", err)
			continue
		}
		limitDiskThreshold(config.Hard, signal, size)
	}
	return config
}

// limitDiskThreshold replaces the default threshold of a signal if it is more than EnoughFreeBytes of a disk of that size.
func limitDiskThreshold(hard map[string]string, signal eviction.Signal, size int64) {
	percent := int64(10)
	if signal == eviction.ImageFsAvailable {
		percent = 15
	}
	if size/100*percent > EnoughFreeBytes {
		hard[string(signal)] = resource.NewQuantity(EnoughFreeBytes, resource.BinarySI).String()
	}
}

// diskSize returns the size of the file system that the directory is on.
func diskSize(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(fs.Blocks) * fs.Bsize, nil
}
