package network

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/statefile"
)

// HostsPath is the path of the hosts file in containers.
const HostsPath = "/etc/hosts"

// hostsMode is the mode of hosts files.
const hostsMode = 0o644

// HostsFile returns the hosts file of a Pod with its own network.
func HostsFile(pod *corev1.Pod, ips []string, hostname, domain string) []byte {
	var b bytes.Buffer
	b.WriteString("# Kubernetes-managed hosts file.\n")
	for _, line := range []string{
		"127.0.0.1\tlocalhost",
		"::1\tlocalhost ip6-localhost ip6-loopback",
		"fe00::0\tip6-localnet",
		"fe00::0\tip6-mcastprefix",
		"fe00::1\tip6-allnodes",
		"fe00::2\tip6-allrouters",
	} {
		b.WriteString(line + "\n")
	}
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, hostname, domain, hostname)
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, hostname)
		}
	}
	writeAliases(&b, pod.Spec.HostAliases)
	return b.Bytes()
}

// HostNetworkHostsFile returns the hosts file of a Pod on the host's network: the node's file with the Pod's aliases.
func HostNetworkHostsFile(pod *corev1.Pod, nodeHosts []byte) []byte {
	var b bytes.Buffer
	b.WriteString("# Kubernetes-managed hosts file (host network).\n")
	b.Write(nodeHosts)
	writeAliases(&b, pod.Spec.HostAliases)
	return b.Bytes()
}

func writeAliases(b *bytes.Buffer, aliases []corev1.HostAlias) {
	if len(aliases) == 0 {
		return
	}
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, alias := range aliases {
		fmt.Fprintf(b, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
	}
}

// WriteHosts writes a Pod's hosts file with mode 0644, whatever the umask. It writes in place and only if the content
// differs: running containers have this very file mounted, so it must not be replaced. They may write to it, so of what is there no
// more is read than the content has bytes. What is no file is set aside, which is logged.
func WriteHosts(logger *slog.Logger, path string, content []byte) error {
	if info, err := os.Lstat(path); err == nil && info.Mode() == hostsMode {
		if old, err := statefile.Read(path, int64(len(content))); err == nil && bytes.Equal(old, content) {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make directory of hosts file %q: %w", path, err)
	}
	statefile.SetAsideUnlessFile(logger, path, "the hosts file of a Pod is written again, without what its containers have added")
	if err := overwrite(path, content); err != nil {
		return fmt.Errorf("write hosts file %q: %w", path, err)
	}
	return nil
}

// overwrite replaces the content of the file, or makes it.
func overwrite(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, hostsMode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Chmod(hostsMode), file.Close())
}
