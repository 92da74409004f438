package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/berth-dev/berth/internal/atomicfile"
)

// Write creates the directories and writes both configurations, containerd's and the pod network's. It may run before every
// start; files are replaced as a whole. An error names the field that cannot be.
func (c Config) Write() error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("configure containerd: %w", err)
	}
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{
		// Others may pass, not look: a Pod with its own user namespace is "others" on the way to its root.
		{c.Root, 0o711}, {c.RunDir, 0o711}, {c.shimDir(), 0o700}, {c.CNIConfDir, 0o700},
	} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return fmt.Errorf("configure containerd: %w", err)
		}
		if err := os.Chmod(dir.path, dir.mode); err != nil { // It may be older, and tighter.
			return fmt.Errorf("configure containerd: %w", err)
		}
	}
	var main bytes.Buffer
	if err := configFile.Execute(&main, templateConfig{c}); err != nil {
		return fmt.Errorf("write containerd's configuration: %w", err)
	}
	return errors.Join(atomicfile.WriteVolatile(c.File(), main.Bytes(), 0o600), c.writeNetworks())
}

// configFile is containerd's configuration. What is not said is containerd's default; what is said has a reason.
var configFile = template.Must(template.New("containerd.toml").Funcs(template.FuncMap{
	// A TOML basic string escapes as a JSON string does, and validate has refused what is not printable.
	"q": func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
	},
}).Parse(`# Written by berth at every start: changes are lost.
version = 4
root = {{q .Root}}
state = {{q .State}}
oom_score = 0
# No file outside the cluster's directories has a say.
imports = []
# Without these it is of no use: it exits, and is started again, if a file of one of them cannot be written for a moment.
required_plugins = [
  "io.containerd.grpc.v1.cri",
  "io.containerd.server.v1.grpc",
  "io.containerd.server.v1.ttrpc",
]
# What a node does not use: less to start, no timers, no directory in /opt, no socket of other clusters' plugins.
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.image-verifier.v1.bindir",
  "io.containerd.monitor.container.v1.restart",
  "io.containerd.monitor.task.v1.cgroups",
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.differ.v1.erofs",
  "io.containerd.mount-handler.v1.erofs",
{{- if eq .Machine.Snapshotter "overlayfs"}}
  "io.containerd.snapshotter.v1.native",
{{- else}}
  "io.containerd.snapshotter.v1.overlayfs",
{{- end}}
]

# Containerd takes a shim that gives no answer in time for dead, and kills what runs there. Its own defaults, 5 and 2
# seconds, are short on a machine with too much to do, and nothing is gained by killing a Pod that is only slow. The removal of
# what a dead shim has left is killed after its time, 5 seconds by default: what it has not come to would be left for good.
[timeouts]
  "io.containerd.timeout.shim.load" = "1m"
  "io.containerd.timeout.shim.cleanup" = "1m"
  "io.containerd.timeout.task.state" = "1m"

[plugins."io.containerd.server.v1.grpc"]
  address = {{q .Socket}}
  # The list of a node's Pods, with all annotations that the API server allows. It streams lists, too, but not in smaller messages.
  max_send_message_size = {{.MaxMessage}}
[plugins."io.containerd.server.v1.ttrpc"]
  address = {{q (printf "%s.ttrpc" .Socket)}}
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = {{q .ShimDir}}

[plugins."io.containerd.grpc.v1.cri"]
  # Streams (exec, attach, port-forward) are served on loopback, on a port that the kernel chooses.
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

# A layer is on the disk before it counts as unpacked. Else a power failure leaves empty files in an image that seems complete.
[plugins."io.containerd.service.v1.diff-service"]
  sync_fs = {{not .UnsafeNoSync}}

[plugins."io.containerd.cri.v1.images"]
  snapshotter = {{q .Machine.Snapshotter}}
  # The transfer service, which would pull images, cannot do that.
  use_local_image_pull = true
  image_pull_with_sync_fs = {{not .UnsafeNoSync}}
  # How old image sizes may be, in seconds; each round walks all snapshots.
  stats_collect_period = 60
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = {{q .SandboxImage}}
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = {{q .Registries}}
[plugins."io.containerd.transfer.v1.local"]
  config_path = {{q .Registries}}

[plugins."io.containerd.cri.v1.runtime"]
  enable_selinux = {{.Machine.SELinux}}
  disable_apparmor = {{not .Machine.AppArmor}}
  restrict_oom_score_adj = {{.Machine.RestrictOOMScoreAdj}}
  device_ownership_from_security_context = true
  netns_mounts_under_state_dir = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  # For the CPU rate in container statistics; the default of one second costs more than all else of an idle node.
  stats_collect_period = "30s"
  stats_retention_period = "2m"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = {{q .DefaultRuntime}}
{{- range .Runtimes}}
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{{.}}]
      # Both shims keep their containers in runc's state and have its options.
      runtime_type = "io.containerd.runc.v2"
      runtime_path = {{q ($.Program ($.Shim .))}}
      sandboxer = "podsandbox"
{{- with $.NetworkOf .}}
      cni_conf_dir = {{q .}}
      cni_max_conf_num = 1
{{- end}}
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{{.}}.options]
        BinaryName = {{q ($.Program "runc")}}
        Root = {{q (printf "%s/runc" $.RunDir)}}
        SystemdCgroup = {{$.SystemdCgroup}}
{{- end}}
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{{q .CNIBinDir}}]
    conf_dir = {{q .CNIConfDir}}
    max_conf_num = 1
    # The loopback interface is brought up without running a program for it.
    use_internal_loopback = true
`))

// maxMessage is the size of the largest response, in bytes: 1000 Pods with annotations of 256 KiB.
const maxMessage = 256 << 20

// MaxMessage is for the template.
func (c templateConfig) MaxMessage() int { return maxMessage }

// ShimDir is for the template.
func (c templateConfig) ShimDir() string { return c.shimDir() }

// Program is for the template.
func (c templateConfig) Program(name string) string { return filepath.Join(c.BinDir, name) }

// DefaultRuntime, Runtimes and Shim are for the template.
func (c templateConfig) DefaultRuntime() string { return c.defaultRuntime() }

func (templateConfig) Runtimes() []string { return Runtimes() }

func (templateConfig) Shim(runtime string) string { return ShimProgram(runtime) }

// NetworkOf is for the template: the directory of the network's configuration for a runtime, empty for that of all.
func (c templateConfig) NetworkOf(runtime string) string {
	if c.StandardPlugins && runtime == RuntimeRunc {
		return c.standardNetworkDir()
	}
	return ""
}

// templateConfig adds what only the template needs.
type templateConfig struct{ Config }
