// Package selinux computes the SELinux labels of volumes from the options of the containers that use them.
package selinux

import (
	"fmt"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	corev1 "k8s.io/api/core/v1"
)

// Labels computes labels as the container runtime does.
type Labels interface {
	// Enabled reports whether the machine uses SELinux.
	Enabled() bool
	// FileLabel returns the label of files that a process with these options may use. What the options leave out is that of
	// the machine's policy. It is empty where SELinux is not enabled, and for options without any value.
	FileLabel(options *corev1.SELinuxOptions) (string, error)
}

// Kernel are the Labels of this machine.
type Kernel struct{}

var _ Labels = Kernel{}

// Enabled implements Labels.
func (Kernel) Enabled() bool { return selinux.GetEnabled() }

// FileLabel implements Labels.
func (Kernel) FileLabel(options *corev1.SELinuxOptions) (string, error) {
	var args []string
	for _, option := range []struct{ name, value string }{
		{"user", options.User}, {"role", options.Role}, {"type", options.Type}, {"level", options.Level},
	} {
		if option.value != "" {
			args = append(args, option.name+":"+option.value)
		}
	}
	if len(args) == 0 {
		return "", nil
	}
	process, file, err := label.InitLabels(args)
	if err != nil {
		return "", fmt.Errorf("compute the SELinux label for %v: %w", args, err)
	}
	selinux.ReleaseLabel(process) // it may be one that was reserved for a new process, which there is none of
	return file, nil
}

// MountOption returns the mount option that labels all files of a volume. The quotes let the label contain commas.
func MountOption(label string) string { return fmt.Sprintf("context=%q", label) }
