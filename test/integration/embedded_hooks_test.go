//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/cadvisor/info/v1"
	"github.com/stretchr/testify/require"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	kubeio "github.com/berth-dev/berth/kubelet/util/io"
	kubeletvolume "github.com/berth-dev/berth/kubelet/volume"
	"github.com/berth-dev/berth/volume"
)

// calls records the paths that a dependency was called with.
type calls struct {
	mu    sync.Mutex // guards paths
	paths []string
}

func (c *calls) add(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paths = append(c.paths, path)
}

// has reports whether there was a call with a path that ends in suffix.
func (c *calls) has(suffix string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.paths, func(path string) bool { return strings.HasSuffix(path, suffix) })
}

// ownMounter mounts with mount(8).
type ownMounter struct {
	mount.Interface
	mounted, unmounted calls
}

// Mount implements mount.Interface.
func (m *ownMounter) Mount(source, target, fstype string, options []string) error {
	m.mounted.add(target)
	return m.Interface.Mount(source, target, fstype, options)
}

// Unmount implements mount.Interface.
func (m *ownMounter) Unmount(target string) error {
	m.unmounted.add(target)
	return m.Interface.Unmount(target)
}

// ownWriter is a Writer.
type ownWriter struct {
	kubeio.StdWriter
	calls
}

// WriteFile implements kubeio.Writer.
func (w *ownWriter) WriteFile(name string, data []byte, perm os.FileMode) error {
	w.add(name)
	return w.StdWriter.WriteFile(name, data, perm)
}

// ownOS is the machine under another name.
type ownOS struct {
	container.RealOS
	directories, links calls
}

// Hostname implements container.OSInterface.
func (*ownOS) Hostname() (string, error) { return "Own-Machine", nil }

// MkdirAll implements container.OSInterface.
func (o *ownOS) MkdirAll(path string, perm os.FileMode) error {
	o.directories.add(path)
	return o.RealOS.MkdirAll(path, perm)
}

// Symlink implements container.OSInterface.
func (o *ownOS) Symlink(target, name string) error {
	o.links.add(name)
	return o.RealOS.Symlink(target, name)
}

// ownMachine is a machine with other hardware, which is out of memory once.
type ownMachine struct{ cadvisor.Interface }

// MachineInfo implements cadvisor.Interface.
func (m ownMachine) MachineInfo() (*v1.MachineInfo, error) {
	info, err := m.Interface.MachineInfo()
	if err != nil {
		return nil, err
	}
	info.NumCores, info.MemoryCapacity = 77, 1<<40
	return info, nil
}

// WatchOOM implements cadvisor.Interface.
func (ownMachine) WatchOOM(ctx context.Context, report func(string, v1.OomKillEventData)) error {
	report("/", v1.OomKillEventData{Pid: 42, ProcessName: "greedy"})
	<-ctx.Done()
	return nil
}

// ownLayout is a ContainerManager.
type ownLayout cm.NodeConfig

// GetNodeConfig implements cm.ContainerManager.
func (l ownLayout) GetNodeConfig() cm.NodeConfig { return cm.NodeConfig(l) }

// diskPlugin is a volume plugin of a third party, in the manner of those that were in Kubernetes' tree: with its host's means
// it mounts a file system and writes a file to it.
type diskPlugin struct{ host kubeletvolume.VolumeHost }

var _ kubeletvolume.Initializer = (*diskPlugin)(nil)

const diskPluginName = "example.com/disk"

// Name implements volume.Plugin.
func (*diskPlugin) Name() string { return diskPluginName }

// Init implements kubeletvolume.Initializer.
func (p *diskPlugin) Init(host kubeletvolume.VolumeHost) error {
	p.host = host
	return nil
}

// CanSupport implements volume.Plugin.
func (*diskPlugin) CanSupport(spec volume.Spec) bool {
	return spec.Volume != nil && spec.Volume.FlexVolume != nil && spec.Volume.FlexVolume.Driver == diskPluginName
}

// SetUp implements volume.Plugin.
func (p *diskPlugin) SetUp(_ context.Context, req volume.Request) (volume.Mount, error) {
	if !strings.HasPrefix(req.Dir, p.host.GetPodDir(req.Pod.UID)) {
		return volume.Mount{}, fmt.Errorf("directory %q is not the Pod's", req.Dir)
	}
	if err := os.MkdirAll(req.Dir, 0o750); err != nil {
		return volume.Mount{}, err
	}
	mounted, err := p.host.GetMounter().IsMountPoint(req.Dir)
	if err != nil {
		return volume.Mount{}, err
	}
	if !mounted {
		if err := p.host.GetMounter().Mount("tmpfs", req.Dir, "tmpfs", []string{"size=1m"}); err != nil {
			return volume.Mount{}, err
		}
	}
	text := "written on " + p.host.GetHostname()
	return volume.Mount{Path: req.Dir}, p.host.GetWriter().WriteFile(filepath.Join(req.Dir, "file"), []byte(text), 0o644)
}

// TearDown implements volume.Plugin.
func (p *diskPlugin) TearDown(_ context.Context, dir string) error {
	if mounted, err := p.host.GetMounter().IsMountPoint(dir); err == nil && mounted {
		if err := p.host.GetMounter().Unmount(dir); err != nil {
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// TestEmbeddedDependencies runs a Pod with a kubelet whose machine is the caller's: its mounts, files, links, hardware, cgroups
// and volume plugins.
func TestEmbeddedDependencies(t *testing.T) {
	mounter, writer, machine := &ownMounter{Interface: mount.New("")}, &ownWriter{}, &ownOS{}
	node := newTestNode(t, t.TempDir())
	e := newEmbedded(t, node, func(c *kubeletconfig.KubeletConfiguration, deps *kubelet.KubeletDeps) {
		deps.ContainerManager = ownLayout{CgroupRoot: c.CgroupRoot, PodPidsLimit: 77}
		c.CgroupRoot = ""
		deps.Mounter, deps.Writer, deps.OSInterface = mounter, writer, machine
		deps.Options = []kubelet.Option{kubelet.WithRootDir(node.root()), kubelet.WithContainerLogsDir(node.links()), kubelet.WithLogger(slog.New(slog.NewTextHandler(node.log, nil)))}
		deps.CAdvisorInterface = ownMachine{cadvisor.NewLocal(clock.RealClock{})}
		deps.VolumePlugins = []kubeletvolume.VolumePlugin{&diskPlugin{}}
	})
	stop := e.run()
	e.set(embeddedPod(t, "app", shell("/bin/busybox cat /disk/file; echo; exec /bin/busybox sleep 1000000", `"volumeMounts": [
		{"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"}]`), `"volumes": [
		{"name": "disk", "flexVolume": {"driver": "`+diskPluginName+`"}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}]`))
	pod := e.waitStatus("app", "ready", isReady)

	t.Run("VolumePlugins and Writer", func(t *testing.T) {
		out, err := e.RunInContainer("app_default", pod.UID, "main", []string{"/bin/busybox", "cat", "/disk/file"})
		require.NoError(t, err)
		require.Equal(t, "written on own-machine", string(out))
		dir := volume.Dir(node.root(), pod.UID, diskPluginName, "disk")
		require.True(t, writer.has(filepath.Join(dir, "file")))
		volumes, found := e.ListVolumesForPod(pod.UID)
		require.True(t, found)
		require.Equal(t, dir, volumes["disk"].GetPath())
	})
	t.Run("Mounter", func(t *testing.T) {
		require.True(t, mounter.mounted.has("example.com~disk/disk"))
		require.True(t, mounter.mounted.has("kubernetes.io~empty-dir/memory"), mounter.mounted.paths)
		out, err := e.RunInContainer("app_default", pod.UID, "main", []string{"/bin/busybox", "grep", " /memory tmpfs ", "/proc/mounts"})
		require.NoError(t, err, string(out))
	})
	t.Run("OSInterface", func(t *testing.T) {
		require.Equal(t, "own-machine", e.GetHostname())
		require.True(t, machine.directories.has(node.root()), machine.directories.paths)
		_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		require.NoError(t, retryUntil(t.Context(), func() error {
			if !machine.links.has("app_default_main-" + id + ".log") {
				return errors.New("no link to the container's log")
			}
			return nil
		}, nil))
	})
	t.Run("ContainerManager", func(t *testing.T) {
		layout := e.GetNodeConfig()
		require.Equal(t, []string{"/" + node.cgroup(), "77"}, []string{layout.CgroupRoot, fmt.Sprint(layout.PodPidsLimit)})
		options, err := e.GenerateRunContainerOptions(pod, &pod.Spec.Containers[0], "")
		require.NoError(t, err)
		limits := append(glob(filepath.Join("/sys/fs/cgroup/pids", options.CgroupParent, "pids.max")),
			glob(filepath.Join("/sys/fs/cgroup", options.CgroupParent, "pids.max"))...)
		require.Len(t, limits, 1, options.CgroupParent)
		limit, err := os.ReadFile(limits[0])
		require.NoError(t, err)
		require.Equal(t, "77\n", string(limit))
	})
	t.Run("CAdvisorInterface", func(t *testing.T) { checkOwnMachine(t, e) })

	e.set()
	require.NoError(t, retryUntil(t.Context(), func() error {
		if left := glob(filepath.Join(e.GetPodDir(pod.UID), "volumes", "*", "*")); len(left) > 0 {
			return fmt.Errorf("volumes are left: %v", left)
		}
		return nil
	}, nil))
	require.True(t, mounter.unmounted.has("example.com~disk/disk"))
	require.True(t, mounter.unmounted.has("kubernetes.io~empty-dir/memory"))
	stop()
}

func checkOwnMachine(t *testing.T, e *embedded) {
	node, err := e.GetNode()
	require.NoError(t, err)
	require.EqualValues(t, 77, node.Status.Capacity.Cpu().Value())
	require.EqualValues(t, 1<<40, node.Status.Capacity.Memory().Value())
	info, err := e.GetCachedMachineInfo()
	require.NoError(t, err)
	require.Equal(t, 77, info.NumCores)
	for event := range e.events.Events {
		if strings.Contains(event, "SystemOOM") {
			require.Equal(t, "Warning SystemOOM System OOM encountered, victim process: greedy, pid: 42", event)
			break
		}
	}
	port := freePort(t)
	go e.ListenAndServeReadOnly(net.IPv4(127, 0, 0, 1), uint(port)) // ends with the kubelet
	var summary statsapi.Summary
	require.NoError(t, retryUntil(t.Context(), func() error {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/stats/summary", port))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		return json.Unmarshal(body, &summary)
	}, nil))
	require.Greater(t, *summary.Node.Memory.AvailableBytes, uint64(1<<39), "of the memory that cAdvisor reports")
}

// TestEmbeddedKubeletIsChecked gives NewMainKubelet dependencies that cannot work together.
func TestEmbeddedKubeletIsChecked(t *testing.T) {
	node := newTestNode(t, t.TempDir())
	for want, change := range map[string]func(*kubelet.KubeletDeps){
		"another plugin has this name": func(deps *kubelet.KubeletDeps) {
			deps.VolumePlugins = []kubeletvolume.VolumePlugin{&diskPlugin{}, &diskPlugin{}}
		},
		"KubeletDeps.ContainerManager": func(deps *kubelet.KubeletDeps) { deps.ContainerManager = ownLayout{CgroupDriver: "none"} },
	} {
		c, deps := embeddedConfig(node)
		change(deps)
		_, err := kubelet.NewMainKubelet(c, deps, true)
		require.ErrorContains(t, err, want)
	}
}
