package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/up/containerd"
)

const (
	imageVersion = "v1"
	startTimeout = 30 * time.Second
	// cleanupTimeout is how long it may take to clear the machine, and removers how many Pods are removed at once: a
	// benchmark that is broken off leaves as many as it had.
	cleanupTimeout   = time.Minute
	parallelRemovals = 8
)

// machine is the pod bridge and containerd.
type machine struct {
	*Process
	config containerd.Config
	dir    string
	image  string
	bridge netlink.Link
}

// startMachine creates the bridge, starts containerd and imports the image.
func startMachine(ctx context.Context, bin, dir string, network Network) (_ *machine, err error) {
	// Sockets' paths have to be short.
	run, err := os.MkdirTemp("/run", "bench-")
	if err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	if err := os.Chmod(run, 0o711); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	m := &machine{dir: dir, image: imagestore.PauseName(imageVersion)}
	m.config.RunDir = run
	defer func() {
		if err != nil {
			err = errors.Join(err, m.stop())
		}
	}()
	// As systemd's /run is: what a container costs there must not depend on the disk.
	if err := unix.Mount("tmpfs", run, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711"); err != nil {
		return nil, fmt.Errorf("mount a tmpfs at the run directory: %w", err)
	}
	if m.config, err = containerdConfig(bin, dir, run, network); err != nil {
		m.config.RunDir = run
		return nil, err
	}
	if err := m.makeBridge(); err != nil {
		return nil, err
	}
	if err := m.config.Write(); err != nil {
		return nil, err
	}
	if m.config.ClusterMasquerade {
		if err := m.config.Masquerade(ctx); err != nil {
			return nil, err
		}
	}
	argv, env := m.config.Command()
	if m.Process, err = start(ctx, dir, "containerd", argv, env, nil); err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := m.config.WaitReady(ready, clock.RealClock{}); err != nil {
		return nil, errors.Join(err, m.earlyExit())
	}
	return m, m.addImage(ctx, bin)
}

func containerdConfig(bin, dir, run string, network Network) (containerd.Config, error) {
	root := filepath.Join(dir, "containerd")
	found, err := containerd.Detect(root)
	if err != nil {
		return containerd.Config{}, err
	}
	pods, err := netip.ParsePrefix(network.PodCIDR)
	if err != nil {
		return containerd.Config{}, fmt.Errorf("pod network: %w", err)
	}
	gateway, err := netip.ParseAddr(network.Gateway)
	if err != nil {
		return containerd.Config{}, fmt.Errorf("gateway: %w", err)
	}
	return containerd.Config{
		BinDir: bin, CNIBinDir: filepath.Join(bin, "cni"), Root: root, RunDir: run,
		CNIConfDir: filepath.Join(dir, "cni"), SandboxImage: imagestore.PauseName(imageVersion),
		Bridge: "bn" + strings.TrimPrefix(filepath.Base(run), "bench-"), PodCIDR: pods, Gateway: gateway,
		ClusterMasquerade: found.Firewall == "iptables", Machine: found,
		StandardPlugins: true, // so that what others do with containerd's shim is as they do it elsewhere
	}, nil
}

func (m *machine) makeBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = m.config.Bridge
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("create bridge %s: %w", attrs.Name, err)
	}
	m.bridge = bridge
	address := &net.IPNet{IP: m.config.Gateway.AsSlice(), Mask: net.CIDRMask(m.config.PodCIDR.Bits(), 32)}
	if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: address}); err != nil {
		return fmt.Errorf("give bridge %s its address: %w", attrs.Name, err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("bring up bridge %s: %w", attrs.Name, err)
	}
	return nil
}

func (m *machine) endpoint() string { return "unix://" + m.config.Socket() }

func (m *machine) addImage(ctx context.Context, bin string) error {
	store, err := imagestore.Open(ctx, m.config.Socket())
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // nothing was written through it that could be lost
	program, err := os.ReadFile(filepath.Join(bin, "images", "pause"))
	if err != nil {
		return fmt.Errorf("read the image's program: %w", err)
	}
	image, err := imagestore.Build(imagestore.PauseSpec(program, imageVersion))
	if err != nil {
		return err
	}
	return store.Ensure(ctx, image)
}

// stop removes everything from the machine.
func (m *machine) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	var errs []error
	if m.Process != nil {
		errs = append(errs, removeSandboxes(ctx, m.endpoint()), m.Stop())
	}
	if m.config.ClusterMasquerade {
		errs = append(errs, m.config.Unmasquerade(ctx))
	}
	if m.bridge != nil {
		errs = append(errs, netlink.LinkDel(m.bridge))
	}
	if m.config.RunDir != "" {
		// Kubelets mount their own directories onto themselves, and leave them so.
		errs = append(errs, unmountBelow(ctx, m.config.RunDir), unmountBelow(ctx, m.dir))
		if err := unix.Unmount(m.config.RunDir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // it may not be mounted
			errs = append(errs, fmt.Errorf("unmount the run directory: %w", err))
		}
		errs = append(errs, os.RemoveAll(m.config.RunDir))
	}
	if m.config.Bridge != "" {
		removeCgroups(m.config.Bridge)
	}
	return errors.Join(errs...)
}

// removeSandboxes removes all Pods of a container runtime.
func removeSandboxes(ctx context.Context, endpoint string) error {
	runtime, err := Dial(endpoint)
	if err != nil {
		return err
	}
	defer runtime.Close() //nolint:errcheck // only read from
	list, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	var removing errgroup.Group
	removing.SetLimit(parallelRemovals)
	errs := make([]error, len(list.Items))
	for i, sandbox := range list.Items {
		removing.Go(func() error {
			errs[i] = runtime.remove(ctx, sandbox.Id)
			return nil
		})
	}
	_ = removing.Wait() // the errors are all in errs
	return errors.Join(errs...)
}

func unmountBelow(ctx context.Context, dir string) error {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	lines := strings.Split(string(text), "\n")
	var errs []error
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(lines[i])
		if len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			errs = append(errs, exec.CommandContext(ctx, "umount", "-l", fields[1]).Run())
		}
	}
	return errors.Join(errs...)
}

// makeCgroups makes the root cgroup of the Pods in each hierarchy of the kernel. Kubernetes' kubelet does not start without it.
func makeCgroups(root string) error {
	places, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs") // of version 1
	if err != nil {
		return fmt.Errorf("list the cgroup hierarchies: %w", err)
	}
	if len(places) == 0 {
		places = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	for _, place := range places {
		if err := os.MkdirAll(filepath.Join(filepath.Dir(place), root), 0o755); err != nil {
			return fmt.Errorf("make the root cgroup of the Pods: %w", err)
		}
	}
	return nil
}

// removeCgroups removes the empty cgroups below the root that Pods had. What is not empty stays.
func removeCgroups(root string) {
	places, err := filepath.Glob("/sys/fs/cgroup/*/" + root)
	if err != nil {
		return
	}
	for _, place := range append(places, "/sys/fs/cgroup/"+root) {
		var dirs []string
		_ = filepath.WalkDir(place, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = os.Remove(dirs[i])
		}
	}
}
