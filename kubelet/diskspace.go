package kubelet

import (
	"errors"
	"fmt"

	"github.com/berth-dev/berth/kubelet/lifecycle"
)

// DiskSpacePolicy says how much must be free on disk for the node to take another Pod, in MiB. Zero asks for nothing.
type DiskSpacePolicy struct {
	// DockerFreeDiskMB is for the file system of images, RootFreeDiskMB for that of the Pods' directories.
	DockerFreeDiskMB int
	RootFreeDiskMB   int
}

// diskAdmission rejects Pods when the disk is nearly full. It is called once the Kubelet is complete.
type diskAdmission struct {
	k      *Kubelet
	policy DiskSpacePolicy
}

// WithDiskSpacePolicy makes the node reject Pods, with reason OutOfDisk, while less is free than the policy says. The
// error names a field that is negative.
func WithDiskSpacePolicy(policy DiskSpacePolicy) (Option, error) {
	if policy.DockerFreeDiskMB < 0 {
		return nil, fmt.Errorf("disk space policy: DockerFreeDiskMB %d is negative", policy.DockerFreeDiskMB)
	}
	if policy.RootFreeDiskMB < 0 {
		return nil, fmt.Errorf("disk space policy: RootFreeDiskMB %d is negative", policy.RootFreeDiskMB)
	}
	return func(k *Kubelet) { k.deps.AdmitHandlers = append(k.deps.AdmitHandlers, &diskAdmission{k, policy}) }, nil
}

// Admit implements lifecycle.PodAdmitHandler.
func (d *diskAdmission) Admit(*lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	err := errors.Join(d.check("the root file system", d.policy.RootFreeDiskMB, func() (uint64, error) {
		info, err := d.k.RootFsInfo()
		return info.Available, err
	}), d.check("the images' file system", d.policy.DockerFreeDiskMB, func() (uint64, error) {
		info, err := d.k.ImagesFsInfo()
		return info.Available, err
	}))
	if err != nil {
		return lifecycle.PodAdmitResult{Reason: "OutOfDisk", Message: err.Error()}
	}
	return lifecycle.PodAdmitResult{Admit: true}
}

// check compares the free space with the policy. What cannot be measured rejects no Pod.
func (d *diskAdmission) check(name string, requiredMB int, measure func() (uint64, error)) error {
	if requiredMB == 0 {
		return nil
	}
	free, err := measure()
	if err != nil {
		d.k.deps.Logger.Warn("failed to measure free disk space", "filesystem", name, "error", err)
		return nil
	}
	if free >= uint64(requiredMB)<<20 {
		return nil
	}
	return fmt.Errorf("%s has %d MiB free, and the policy requires %d", name, free>>20, requiredMB)
}
