package snapshots

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/bench/harness"
)

const (
	ours      = "berth"
	plainCopy = "copied and synced"

	size = 10 << 30 // of the volume, all of it written
	// needed is what the largest case needs: a volume and one copy of it, and some for the file system.
	needed   = 2*size + 3<<30
	diskSize = needed

	snapshotted = "snapshot"
	restored    = "restore"
	cloned      = "clone"
)

// Benchmark measures snapshots.
func Benchmark() harness.Benchmark {
	metrics := func(unit string) []harness.Metric {
		return []harness.Metric{
			{Name: snapshotted, Unit: unit, Better: harness.Lower},
			{Name: restored, Unit: unit, Better: harness.Lower},
			{Name: cloned, Unit: unit, Better: harness.Lower},
		}
	}
	targets := func(against string, ratio float64) []harness.Target {
		return []harness.Target{
			{Metric: snapshotted, Against: against, Ratio: ratio},
			{Metric: restored, Against: against, Ratio: ratio},
			{Metric: cloned, Against: against, Ratio: ratio},
		}
	}
	return harness.Benchmark{
		Name: "snapshots", Title: "Snapshots, restores and clones", Budget: 12 * time.Minute,
		About: "A volume of 10 GiB of csi.berth.dev, all of it written: CreateSnapshot, CreateVolume from the snapshot and CreateVolume from the" +
			" volume, each from the call to its answer, over the driver's socket. The disk is a file with xfs, made with reflinks and" +
			" without. *Copied and synced* is the time that the same disk takes for one plain copy of the image and for" +
			" syncing it: the disk's own rate. What is read is not in the page cache.",
		Missing: missing,
		Cases: []harness.Case{
			{
				Name: "10 GiB, with reflinks", Metrics: metrics("ms"), Rounds: 3, Timeout: 15 * time.Minute,
				Variants: []harness.Variant{{Name: ours, Run: runDriver(true, time.Millisecond)}},
				Targets:  targets("", 100),
			},
			{
				Name: "10 GiB, without reflinks", Metrics: metrics("s"), Rounds: 2, Timeout: 30 * time.Minute,
				Variants: []harness.Variant{
					{Name: ours, Run: runDriver(false, time.Second)},
					{Name: plainCopy, Run: runCopy},
				},
				Targets: targets(plainCopy, 1.15),
			},
		},
	}
}

func missing(site harness.Paths) string {
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		return "there is no mkfs.xfs: install the package xfsprogs"
	}
	if site.Dir == "" {
		return ""
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(site.Dir, &stat); err != nil {
		return fmt.Sprintf("read the free space of %s: %v", site.Dir, err)
	}
	if free := int64(stat.Bavail) * stat.Bsize; free < needed {
		return fmt.Sprintf("%s has %d GiB free, and %d are needed", site.Dir, free>>30, int64(needed)>>30)
	}
	return ""
}

// runDriver returns a variant that measures the driver.
func runDriver(reflinks bool, unit time.Duration) func(context.Context, *harness.Sample) error {
	return func(ctx context.Context, sample *harness.Sample) error {
		return withDisk(ctx, sample.Paths.Dir, reflinks, func(dir string) error {
			return measureDriver(ctx, sample, dir, unit)
		})
	}
}

// runCopy measures plain copies. One is as good as the other, so it counts for each metric.
func runCopy(ctx context.Context, sample *harness.Sample) error {
	return withDisk(ctx, sample.Paths.Dir, false, func(dir string) error {
		took, err := measureCopy(ctx, dir)
		for _, name := range []string{snapshotted, restored, cloned} {
			sample.Set(name, took.Seconds())
		}
		return err
	})
}
