package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	accelKVM = "kvm"
	accelTCG = "tcg"

	qemu = "qemu-system-x86_64"

	// probeTimeout bounds the test of KVM. Where it works the guest ends within two seconds.
	probeTimeout = 20 * time.Second
	// checkTimeout bounds the start of a qemu that emulates nothing.
	checkTimeout = time.Minute
)

// Check returns why qemu cannot emulate a machine here, or nil: not installed, or the kernel forbids what it needs.
func Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu, "-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none", "-S", "-monitor", "stdio")
	cmd.Stdin = strings.NewReader("quit\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("start %s: %w: %s", qemu, err, out)
	}
	return nil
}

// accelerator returns kvm if a guest really runs with it, else tcg. The result is kept beside the image until the host
// boots again.
func (i *Image) accelerator(ctx context.Context) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("detect KVM: %w", err)
	}
	file := filepath.Join(i.dir, "accelerator-"+strings.TrimSpace(string(boot)))
	if known, err := os.ReadFile(file); err == nil && (string(known) == accelKVM || string(known) == accelTCG) {
		return string(known), nil
	}
	result, err := probe(ctx, filepath.Join(i.dir, kernelFile))
	if err != nil {
		return "", fmt.Errorf("detect KVM: %w", err)
	}
	return result, os.WriteFile(file, []byte(result), 0o644)
}

// probe boots the kernel without a root file system: it panics and restarts the guest, which ends qemu. That /dev/kvm opens
// says little: inside of some virtual machines it does, and guests hang.
func probe(ctx context.Context, kernel string) (string, error) {
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return accelTCG, nil
	}
	if err := device.Close(); err != nil {
		return "", err
	}
	limited, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err = exec.CommandContext(limited, qemu, "-accel", "kvm", "-cpu", "host", "-nodefaults", "-no-user-config", "-display", "none",
		"-m", "256", "-no-reboot", "-kernel", kernel, "-append", "panic=-1").Run()
	switch {
	case err == nil:
		return accelKVM, nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%s not found; install Debian's package qemu-system-x86", qemu)
	}
	return accelTCG, nil
}
