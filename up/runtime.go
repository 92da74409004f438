package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/up/containerd"
)

// ownImageVersion is the tag of the images that berth brings along. It changes when their programs do.
const ownImageVersion = "v1"

// containerdName is the container runtime's name among the cluster's processes.
const containerdName = "containerd"

// containerdConfig is how this cluster's container runtime is set up.
func (c *Cluster) containerdConfig() (containerd.Config, error) {
	root := c.ContainerdRoot()
	machine, err := containerd.Detect(root)
	if err != nil {
		return containerd.Config{}, err
	}
	for _, report := range machine.Warnings() {
		c.logger.Info("this machine has " + report)
	}
	return containerd.Config{
		BinDir: c.BinDir, CNIBinDir: c.Program("cni"),
		Root: root, RunDir: c.RunDir, CNIConfDir: filepath.Join(c.DataDir, "cni", "net.d"),
		SandboxImage: imagestore.PauseName(ownImageVersion),
		Bridge:       c.Bridge(), PodCIDR: c.Pods, Gateway: c.Gateway,
		// One rule for the whole cluster costs nothing per Pod, and leaves nothing when a Pod's end is cut short.
		ClusterMasquerade: machine.Firewall == "iptables",
		Machine:           machine,
	}, nil
}

// cleanupNetwork takes away what the pod network leaves outside the cluster's own directories.
func (l Layout) cleanupNetwork(ctx context.Context) error {
	config := containerd.Config{Bridge: l.Bridge(), RunDir: l.RunDir, Machine: containerd.Machine{Firewall: "iptables"}}
	files, err := filepath.Glob(config.NetworkCache())
	if err != nil {
		return err
	}
	var errs []error
	if _, err := exec.LookPath("iptables"); err == nil {
		errs = append(errs, config.Unmasquerade(ctx))
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove a trace of the pod network: %w", err))
		}
	}
	return errors.Join(errs...)
}

// runContainerd runs the container runtime and opens the latch once it can run Pods and has our images.
func (c *Cluster) runContainerd(ctx context.Context, ready *readiness) error {
	c.progress.Starting("containerd")
	config, err := c.containerdConfig()
	if err != nil {
		return fmt.Errorf("set up containerd: %w", err)
	}
	c.runtime.Store(&config)
	if err := config.CheckFree(ctx); err != nil {
		return err
	}
	if err := config.Write(); err != nil {
		return fmt.Errorf("set up containerd: %w", err)
	}
	if config.ClusterMasquerade {
		if err := config.Masquerade(ctx); err != nil {
			return fmt.Errorf("let Pods reach other networks: %w", err)
		}
	}
	if err := c.exitRecords.Recover(ctx); err != nil {
		return err
	}
	if err := errors.Join(config.RemoveDeadSockets(), config.RemoveDeadBundles()); err != nil {
		c.logger.Warn("what an earlier containerd left stays", "error", err)
	}
	namespaces := config.NetworkNamespaces()
	// The readiness of a containerd that has died must not be waited for.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waited := make(chan error, 1)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		if err := c.exitRecords.Watch(ctx); err != nil && ctx.Err() == nil {
			c.logger.Warn("how containers end is not followed any more until containerd starts again", "error", err)
		}
	})
	go func() {
		err := c.waitContainerdReady(ctx, config, ready)
		if err == nil {
			c.maintainContainerd(ctx, config, namespaces)
		} else {
			cancel() // a containerd that nothing can run on is no better than none
		}
		waited <- err
	}()
	argv, env := config.Command()
	err = program{
		name: containerdName, argv: argv, env: env, logFile: c.Log(containerdName), stopSignal: containerd.StopSignal,
		pidFile: filepath.Join(c.RunDir, containerdName+".pid"),
	}.run(ctx)
	cancel()
	if waitErr := <-waited; waitErr != nil && !errors.Is(waitErr, context.Canceled) {
		return errors.Join(err, waitErr)
	}
	return err
}

// waitContainerdReady waits until containerd can run Pods, and brings our images in.
func (c *Cluster) waitContainerdReady(ctx context.Context, config containerd.Config, ready *readiness) error {
	if err := config.WaitReady(ctx, c.clock); err != nil {
		return err
	}
	c.exitRecords.FinishRecovery(ctx)
	if err := c.ensureImages(ctx); err != nil {
		return err
	}
	c.progress.Ready("containerd", "")
	ready.set(nil)
	return nil
}

// maintainContainerd looks after what containerd forgets, while it runs: how containers ended, network namespaces and shims whose
// sandbox was cut off in its start.
func (c *Cluster) maintainContainerd(ctx context.Context, config containerd.Config, namespaces []string) {
	released, err := config.ReleaseNetworkNamespaces(ctx, namespaces)
	if released > 0 {
		c.logger.Info("removed network namespaces of sandboxes whose start was cut off", "count", released)
	}
	if err != nil && ctx.Err() == nil {
		c.logger.Warn("removing network namespaces that no sandbox has failed", "error", err)
	}
	config.RunOrphanCleanup(ctx, c.clock, containerd.OrphanCleanupPeriod, c.logger)
}

// ensureImages brings the images in that no registry has: the sandbox's, and the demo's.
func (c *Cluster) ensureImages(ctx context.Context) error {
	store, err := imagestore.Open(ctx, c.ContainerdSocket())
	if err != nil {
		return err
	}
	defer store.Close()
	var images []imagestore.Built
	for name, spec := range map[string]func([]byte, string) imagestore.BuildSpec{
		"pause": imagestore.PauseSpec, "demo": imagestore.DemoSpec,
	} {
		binary, err := os.ReadFile(c.Program(filepath.Join("images", name)))
		if err != nil {
			return fmt.Errorf("read the program of image %s (run `make build`): %w", name, err)
		}
		built, err := imagestore.Build(spec(binary, ownImageVersion))
		if err != nil {
			return err
		}
		images = append(images, built)
	}
	return store.Ensure(ctx, images...)
}
