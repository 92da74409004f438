package nodemachine

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

//go:embed machine.sh isolate.sh systemctl.sh kubelet.sh kubelet.yaml swap.sh quota.sh
var scripts embed.FS

// MountPoint is where the machine has the directory, whether it is a virtual machine or namespaces of this one.
const MountPoint = "/node"

// Isolate is the name of the script in the directory that runs the suite on this machine itself.
const Isolate = "isolate.sh"

// Store is the name of the directory in it with what containerd stores of the images; without it the machine imports them.
const Store = "store"

// Script is the command to run in the machine.
const Script = "sh " + MountPoint + "/machine.sh"

// Received is how many bytes a virtual machine gets over its network, as the standard input of Script: the suite expects that the interface
// eth0, where a node has that, has received a megabyte at least, as it has where images are pulled.
const Received = 2 << 20

// Logs is the machine's directory of reports and logs.
const Logs = "/var/log/e2e-node"

// What a virtual machine can have besides; without them specs about swap and project quotas are skipped.
const (
	Swap  = "swap"
	Quota = "quota"
)

// Content says what the directory gets.
type Content struct {
	// Programs are the files of bin/: name there to path here. The suite, ginkgo, kubelet, berth, conformance and what
	// make build puts beside berth are required.
	Programs map[string]string
	// Containerd is the script that installs containerd: vm/guest/containerd.sh.
	Containerd string
	// Images is the directory of an OCI layout.
	Images string
	// SandboxImage is the name of the image in it that holds a Pod's namespaces.
	SandboxImage string
	// Shim is the program of the runtime of all Pods.
	Shim string
	// Extras are what the machine is to have besides: [Swap] or [Quota].
	Extras []string
	// Command is the suite's command line; see [Program].
	Command []string
}

// Program is the path of one of Content's programs in the machine.
func Program(name string) string { return MountPoint + "/bin/" + name }

// Config is the path in the machine of the kubelet's configuration. WorkDir is the directory with the suite's program and the
// one that starts the kubelet, which with systemd is the kubelet itself; the suite writes to it.
const (
	Config  = "/var/lib/e2e-node/kubelet.yaml"
	WorkDir = "/var/lib/e2e-node/tools"
)

// Write makes dir such a directory and nothing else. Files are hard links where that is possible.
func Write(dir string, content Content) error {
	if err := write(dir, content); err != nil {
		return fmt.Errorf("prepare directory %s for the machine: %w", dir, err)
	}
	return nil
}

func write(dir string, content Content) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for name, source := range content.Programs {
		if err := place(source, filepath.Join(dir, "bin", name)); err != nil {
			return err
		}
	}
	if err := place(content.Containerd, filepath.Join(dir, "containerd.sh")); err != nil {
		return err
	}
	err := filepath.WalkDir(content.Images, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(content.Images, path)
		if err != nil {
			return err
		}
		return place(path, filepath.Join(dir, "images", name))
	})
	if err != nil {
		return err
	}
	entries, err := scripts.ReadDir(".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		data, err := scripts.ReadFile(entry.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, entry.Name()), data, 0o644); err != nil {
			return err
		}
	}
	var extras strings.Builder
	for _, extra := range content.Extras {
		fmt.Fprintln(&extras, extra)
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "sandbox-image"), []byte(content.SandboxImage+"\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "extras"), []byte(extras.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "shim"), []byte(content.Shim+"\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "suite"), []byte("exec "+shellWords(content.Command)+"\n"), 0o644))
}

// place links a file or copies it. Symbolic links are followed, because the machine has none of their targets.
func place(source, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	source, err := filepath.EvalSymlinks(source)
	if err != nil {
		return err
	}
	if os.Link(source, target) == nil {
		return nil
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// shellWords quotes a command line for a shell.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
