package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/programs"
	"github.com/berth-dev/berth/internal/routes"
	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/containerd"
)

const (
	// runtimeStartTimeout bounds the start of berth run's own containerd, and runtimeStopTimeout its stop.
	runtimeStartTimeout = 60 * time.Second
	runtimeStopTimeout  = 20 * time.Second
	// runImageVersion is the tag of the images that berth run imports.
	runImageVersion = "v1"
)

// ownRuntime is a containerd that runs for the duration of one `berth run`.
type ownRuntime struct {
	config containerd.Config
	log    *os.File
	cancel context.CancelFunc
	ended  chan error
	unlock func() error
}

// startRuntime starts a containerd below root and waits until it can run Pods.
func startRuntime(ctx context.Context, root, cidr string, printf func(string, ...any)) (_ *ownRuntime, err error) {
	config, err := runtimeConfig(root, cidr)
	if err != nil {
		return nil, err
	}
	unlock, err := lockDir(config.Root, "the containerd below "+root+" is in use (choose another --root-dir)")
	if err != nil {
		return nil, err
	}
	r := &ownRuntime{config: config, unlock: unlock, cancel: func() {}, ended: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	if err := errors.Join(checkPodNetwork(config, printf), config.CheckFree(ctx), config.Write()); err != nil {
		r.ended <- nil
		return nil, fmt.Errorf("set up containerd: %w", err)
	}
	if r.log, err = os.Create(filepath.Join(config.Root, "containerd.log")); err != nil {
		r.ended <- nil
		return nil, fmt.Errorf("open containerd's log: %w", err)
	}
	// containerd must outlive ctx, because the Pod is stopped through it.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	go func() { r.ended <- contain.Do("berth.startRuntime", "", func() error { return r.execute(inner) }) }()
	if err := r.ready(ctx); err != nil {
		return nil, fmt.Errorf("start containerd (see %s): %w", r.log.Name(), err)
	}
	printf("started containerd at %s", config.Socket())
	return r, nil
}

// checkPodNetwork fails if the network of the Pods, or a part of it, is another interface's already, such as the bridge of another
// `berth run`: packets would go to the wrong one. A network around it is only hidden while the Pod runs, which a message says.
func checkPodNetwork(config containerd.Config, printf func(string, ...any)) error {
	machine, err := routes.List()
	if err != nil {
		return err
	}
	for _, route := range machine {
		switch {
		case route.Interface == config.Bridge || !route.Network.Overlaps(config.PodCIDR):
		case route.Network.Bits() >= config.PodCIDR.Bits():
			return fmt.Errorf("--pod-cidr %s overlaps %s of interface %s: choose another range", config.PodCIDR, route.Network, route.Interface)
		default:
			printf("warning: this machine cannot reach %s by interface %s while the Pod runs: if it needs to, choose another --pod-cidr",
				config.PodCIDR, route.Interface)
		}
	}
	return nil
}

// runtimeConfig returns the config of the containerd below root. Each root has its own run directory and bridge.
func runtimeConfig(root, cidr string) (containerd.Config, error) {
	const narrowest = 29 // the network, its broadcast, the bridge, and some Pods
	pods, err := up.ParseCIDR("--pod-cidr", cidr, narrowest)
	if err != nil {
		return containerd.Config{}, usageError{err}
	}
	bin, err := programs.Dir()
	if err != nil {
		return containerd.Config{}, err
	}
	if _, err := os.Stat(filepath.Join(bin, "containerd")); err != nil {
		return containerd.Config{}, fmt.Errorf("containerd not found in %s: run `make build`, "+
			"or name a running one with --container-runtime-endpoint (%w)", bin, err)
	}
	sum := sha256.Sum256([]byte(root))
	id := hex.EncodeToString(sum[:4])
	machine, err := containerd.Detect(filepath.Join(root, "containerd"))
	if err != nil {
		return containerd.Config{}, err
	}
	return containerd.Config{
		BinDir: bin, CNIBinDir: filepath.Join(bin, "cni"), Root: filepath.Join(root, "containerd"),
		RunDir: "/run/berth/run-" + id, CNIConfDir: filepath.Join(root, "net.d"),
		SandboxImage: imagestore.PauseName(runImageVersion), Bridge: "brun" + id,
		PodCIDR: pods.Masked(), Gateway: pods.Masked().Addr().Next(), Machine: machine,
	}, nil
}

// execute runs containerd until ctx ends.
func (r *ownRuntime) execute(ctx context.Context) error {
	// The parent-death signal follows the thread that forked, so this thread must live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	argv, env := r.config.Command()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = r.log, r.log
	// A process group of its own, so that Ctrl-C on the terminal reaches only berth, which then stops everything in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: containerd.StopSignal}
	cmd.Cancel = func() error { return cmd.Process.Signal(containerd.StopSignal) }
	cmd.WaitDelay = runtimeStopTimeout
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("containerd exited unexpectedly (see %s): %w", r.log.Name(), err)
}

// ready waits until containerd can run Pods, and imports the images that no registry has.
func (r *ownRuntime) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, runtimeStartTimeout)
	defer cancel()
	waited := make(chan error, 1)
	go func() {
		waited <- contain.Do("berth.ready", "", func() error { return r.config.WaitReady(ctx, clock.RealClock{}) })
	}()
	select {
	case err := <-waited:
		if err != nil {
			return err
		}
	case err := <-r.ended:
		cancel()
		<-waited
		r.ended <- nil // for stop
		return err
	}
	store, err := imagestore.Open(ctx, r.config.Socket())
	if err != nil {
		return err
	}
	built, err := ownImages(r.config.BinDir)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return errors.Join(store.Ensure(ctx, built...), store.Close())
}

func ownImages(bin string) ([]imagestore.Built, error) {
	var images []imagestore.Built
	for name, spec := range map[string]func([]byte, string) imagestore.BuildSpec{
		"pause": imagestore.PauseSpec, "demo": imagestore.DemoSpec,
	} {
		binary, err := os.ReadFile(filepath.Join(bin, "images", name))
		if err != nil {
			return nil, fmt.Errorf("read the program of image %s (run `make build`): %w", name, err)
		}
		built, err := imagestore.Build(spec(binary, runImageVersion))
		if err != nil {
			return nil, err
		}
		images = append(images, built)
	}
	return images, nil
}

// stop stops containerd and removes its files outside of its root. Images stay in the root for the next run.
func (r *ownRuntime) stop() error {
	r.cancel()
	errs := []error{<-r.ended}
	if r.log != nil {
		errs = append(errs, r.log.Close())
	}
	link, err := netlink.LinkByName(r.config.Bridge)
	if err == nil {
		errs = append(errs, netlink.LinkDel(link))
	}
	files, err := filepath.Glob(r.config.NetworkCache())
	errs = append(errs, err)
	for _, file := range files {
		errs = append(errs, os.Remove(file))
	}
	errs = append(errs, r.removeRunDir(), r.unlock())
	return errors.Join(errs...)
}

// removeRunDir removes the run directory, unless something is still mounted below it.
func (r *ownRuntime) removeRunDir() error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(r.config.RunDir))
	if err != nil {
		return fmt.Errorf("list the mounts below %s: %w", r.config.RunDir, err)
	}
	if len(mounts) > 0 {
		return nil // the next start cleans up
	}
	return os.RemoveAll(r.config.RunDir)
}
