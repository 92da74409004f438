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

// imageVersion is the tag of the images that berth brings along. It changes when their programs do.
const imageVersion = "v1"

// containerdName is the container runtime's name among the cluster's processes.
const containerdName = "containerd"

// containerdConfig is how this cluster's container runtime is set up.
func (c *Cluster) containerdConfig() (containerd.Config, error) {
	root := c.ContainerdRoot()
	machine, err := containerd.Detect(root)
	if err != nil {
		return containerd.Config{}, err
	}
	for _, note := range machine.Notes() {
		c.log.Info("this machine has " + note)
	}
	return containerd.Config{
		BinDir: c.BinDir, CNIBinDir: c.Program("cni"),
		Root: root, RunDir: c.RunDir, CNIConfDir: filepath.Join(c.DataDir, "cni", "net.d"),
		SandboxImage: imagestore.PauseName(imageVersion),
		Bridge:       c.Bridge(), PodCIDR: c.Pods, Gateway: c.Gateway,
		// One rule for the whole cluster costs nothing per Pod, and leaves nothing when a Pod's end is cut short.
		ClusterMasquerade: machine.Firewall == "iptables",
		Machine:           machine,
	}, nil
}

// networkRemains takes away what the pod network leaves outside the cluster's own directories.
func (l Layout) networkRemains(ctx context.Context) error {
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
func (c *Cluster) runContainerd(ctx context.Context, ready *latch) error {
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
	if err := c.exits.Begin(ctx); err != nil {
		return err
	}
	if err := errors.Join(config.RemoveDeadSockets(), config.RemoveDeadBundles()); err != nil {
		c.log.Warn("what an earlier containerd left stays", "error", err)
	}
	namespaces := config.NetworkNamespaces()
	// The readiness of a containerd that has died must not be waited for.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waited := make(chan error, 1)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		if err := c.exits.Follow(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("how containers end is not followed any more until containerd starts again", "error", err)
		}
	})
	go func() {
		err := c.awaitContainerd(ctx, config, ready)
		if err == nil {
			c.tend(ctx, config, namespaces)
		} else {
			cancel() // a containerd that nothing can run on is no better than none
		}
		waited <- err
	}()
	argv, env := config.Command()
	err = program{
		name: containerdName, argv: argv, env: env, log: c.Log(containerdName), end: containerd.End,
		pid: filepath.Join(c.RunDir, containerdName+".pid"),
	}.run(ctx)
	cancel()
	if waitErr := <-waited; waitErr != nil && !errors.Is(waitErr, context.Canceled) {
		return errors.Join(err, waitErr)
	}
	return err
}

// awaitContainerd waits until containerd can run Pods, and brings our images in.
func (c *Cluster) awaitContainerd(ctx context.Context, config containerd.Config, ready *latch) error {
	if err := config.WaitReady(ctx, c.clock); err != nil {
		return err
	}
	c.exits.Settle(ctx)
	if err := c.ensureImages(ctx); err != nil {
		return err
	}
	c.progress.Ready("containerd", "")
	ready.open(nil)
	return nil
}

// tend looks after what containerd forgets, while it runs: how containers ended, network namespaces and shims whose
// sandbox was cut off in its start.
func (c *Cluster) tend(ctx context.Context, config containerd.Config, namespaces []string) {
	released, err := config.ReleaseNetworkNamespaces(ctx, namespaces)
	if released > 0 {
		c.log.Info("removed network namespaces of sandboxes whose start was cut off", "count", released)
	}
	if err != nil && ctx.Err() == nil {
		c.log.Warn("removing network namespaces that no sandbox has failed", "error", err)
	}
	config.KeepClear(ctx, c.clock, containerd.StrayPeriod, c.log)
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
		built, err := imagestore.Build(spec(binary, imageVersion))
		if err != nil {
			return err
		}
		images = append(images, built)
	}
	return store.Ensure(ctx, images...)
}
