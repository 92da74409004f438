package agent

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/cpulist"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/kerneldefaults"
	"github.com/berth-dev/berth/kubelet/node"
)

// prepareMachine sets what Config says of this process and of the kernel. What only makes the node less robust if it cannot be set
// is logged.
func (b *base) prepareMachine(cgroups *cm.Manager) error {
	if err := b.checkCPUs(); err != nil {
		return err
	}
	b.checkResolver()
	switch b.config.KernelDefaults {
	case RequireKernelDefaults:
		if err := kerneldefaults.Check(kerneldefaults.Root); err != nil {
			return fmt.Errorf("protectKernelDefaults: %w: set them with sysctl, or set protectKernelDefaults to false", err)
		}
	case SetKernelDefaults:
		if err := kerneldefaults.Set(kerneldefaults.Root); err != nil {
			b.deps.Logger.Warn("failed to set sysctls of the kernel", "error", err)
		}
	}
	if limit := b.config.MaxOpenFiles; limit > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			b.deps.Logger.Warn("failed to set how many files the kubelet may have open", "limit", limit, "error", err)
		}
	}
	b.setOOMScore()
	if group := b.config.Cgroups.KubeletCgroups; group != "" {
		if err := cgroups.Join(group, os.Getpid()); err != nil {
			return fmt.Errorf("kubeletCgroups: %w", err)
		}
	}
	if group := b.config.Cgroups.SystemCgroups; group != "" {
		if err := cgroups.JoinFromRoot(group); err != nil {
			return fmt.Errorf("systemCgroups: %w", err)
		}
	}
	return nil
}

// checkResolver sends an event about the Node if Pods cannot have all of its resolver configuration.
func (b *base) checkResolver() {
	if err := b.config.DNS.CheckNode(); err != nil {
		b.deps.Recorder.Event(node.Reference(b.config.Node.Name), corev1.EventTypeWarning, "CheckLimitsForResolvConf", err.Error())
	}
}

// checkCPUs returns an error for reserved CPUs that the machine does not have.
func (b *base) checkCPUs() error {
	reserved, err := cpulist.Parse(b.config.Cgroups.ReservedCPUs)
	if err != nil || reserved.IsEmpty() {
		return err
	}
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return fmt.Errorf("reservedSystemCPUs: %w", err)
	}
	all, err := cpulist.Parse(strings.TrimSpace(string(online)))
	if err != nil {
		return fmt.Errorf("reservedSystemCPUs: read the machine's CPUs: %w", err)
	}
	if missing := reserved.Difference(all); !missing.IsEmpty() {
		return fmt.Errorf("reservedSystemCPUs: the machine does not have the CPUs %s: it has %s", missing, all)
	}
	return nil
}
