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
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/up/containerd"
	"github.com/berth-dev/berth/up/supervisor"
)

// ownImageVersion is the tag of the images that berth imports. It changes when their programs do.
const ownImageVersion = "v1"

// containerdName is containerd's name among the cluster's processes.
const containerdName = "containerd"

// http2Preface is how a client of a gRPC server begins: the connection preface of HTTP/2 and an empty SETTINGS frame (RFC 9113,
// section 3.4). The server replies with its own settings.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// containerdConfig returns the config of this cluster's containerd.
func (c *Cluster) containerdConfig() (containerd.Config, error) {
	root := c.ContainerdRoot()
	machine, err := containerd.Detect(root)
	if err != nil {
		return containerd.Config{}, err
	}
	for _, warning := range machine.Warnings() {
		c.logger.Info("this machine lacks a feature", "feature", warning)
	}
	return containerd.Config{
		Runtime: c.Runtime,
		BinDir:  c.BinDir, CNIBinDir: c.Program("cni"),
		Root: root, RunDir: c.RunDir, CNIConfDir: filepath.Join(c.DataDir, "cni", "net.d"),
		SandboxImage: imagestore.PauseName(ownImageVersion),
		Bridge:       c.Bridge(), PodCIDR: c.Pods, ClusterCIDR: c.clusterCIDR(), Gateway: c.Gateway,
		PodCIDR6: c.Pods6, Gateway6: c.Gateway6,
		// One rule for the whole cluster costs nothing per Pod, and cannot be left behind by a Pod.
		ClusterMasquerade: machine.Firewall == "iptables",
		AddressFilter:     c.addressFilter,
		RegistryConfig:    c.registryConfig(),
		UnsafeNoSync:      c.UnsafeNoFsync,
		Machine:           machine,
	}, nil
}

// cleanupNetwork removes the pod network's state outside of the cluster's own directories.
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
			errs = append(errs, fmt.Errorf("remove a cache file of the pod network: %w", err))
		}
	}
	return errors.Join(errs...)
}

// runContainerd runs containerd, and sets ready once it can run Pods and has berth's images. ended says that an earlier one has ended by
// itself, which damaged databases cause.
func (c *Cluster) runContainerd(ctx context.Context, ready *readiness, ended bool) error {
	config, err := c.containerdConfig()
	if err != nil {
		return fmt.Errorf("set up containerd: %w", err)
	}
	c.runtime.Store(&config)
	adopted := c.adopted(containerdName)
	if !adopted {
		c.progress.Starting("containerd")
		if err := c.prepareContainerd(ctx, config, ended); err != nil {
			return err
		}
	}
	return c.followContainerd(ctx, config, ready, adopted)
}

// prepareContainerd does what is to be done before containerd starts.
func (c *Cluster) prepareContainerd(ctx context.Context, config containerd.Config, ended bool) error {
	if err := config.CheckFree(ctx); err != nil {
		return err
	}
	err := config.SetAsideDamaged(ctx, c.logger)
	if err == nil && ended {
		err = config.SetAsideDamagedPages(ctx, c.logger)
	}
	if err != nil {
		return fmt.Errorf("set up containerd: %w", err)
	}
	if err := config.Write(); err != nil {
		return fmt.Errorf("set up containerd: %w", err)
	}
	if config.ClusterMasquerade {
		if err := config.Masquerade(ctx); err != nil {
			return fmt.Errorf("masquerade the Pods' addresses: %w", err)
		}
	}
	if err := c.exitRecords.Recover(ctx); err != nil {
		return err
	}
	if err := errors.Join(config.RemoveDeadSockets(), config.RemoveDeadBundles()); err != nil {
		c.logger.Warn("failed to remove files of an earlier containerd", "error", err)
	}
	return nil
}

// followContainerd runs a containerd that is prepared, or follows one that runs, until it exits.
func (c *Cluster) followContainerd(ctx context.Context, config containerd.Config, ready *readiness, adopted bool) error {
	namespaces := config.NetworkNamespaces()
	// When containerd exits, stop waiting for its readiness.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waited := make(chan error, 1)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(contain.Guard("up.runContainerd", "", func() {
		if err := c.exitRecords.Watch(ctx); err != nil && ctx.Err() == nil {
			c.logger.Warn("lost containerd's events; exit codes are not recorded until it restarts", "error", err)
		}
	}))
	go func() {
		err := contain.Do("up.waitContainerdReady", "", func() error { return c.waitContainerdReady(ctx, config, ready, adopted) })
		if err == nil {
			contain.Guard("up.maintainContainerd", "", func() { c.maintainContainerd(ctx, config, namespaces) })()
		} else {
			cancel() // stop a containerd that does not become ready
		}
		waited <- err
	}()
	argv, env := config.Command()
	err := c.program(supervisor.Program{
		Name: containerdName, Argv: argv, Env: env, StopSignal: containerd.StopSignal, Health: &supervisor.Health{
			Network: "unix", Address: c.ContainerdSocket(), Send: []byte(http2Preface), Timeout: healthTimeout, Failures: maxHealthFailures,
		},
	})(ctx)
	cancel()
	if waitErr := <-waited; waitErr != nil && !errors.Is(waitErr, context.Canceled) {
		return errors.Join(err, waitErr)
	}
	return err
}

// waitContainerdReady waits until containerd can run Pods, and imports berth's images.
func (c *Cluster) waitContainerdReady(ctx context.Context, config containerd.Config, ready *readiness, adopted bool) error {
	if err := config.WaitReady(ctx, c.clock); err != nil {
		return err
	}
	c.exitRecords.FinishRecovery(ctx)
	if err := c.ensureImages(ctx); err != nil {
		return err
	}
	if !adopted {
		c.progress.Ready("containerd", "")
	}
	ready.set(nil)
	return nil
}

// maintainContainerd removes network namespaces and shims of sandboxes whose start was interrupted, while containerd
// runs: containerd does not remove them itself.
func (c *Cluster) maintainContainerd(ctx context.Context, config containerd.Config, namespaces []string) {
	released, err := config.ReleaseNetworkNamespaces(ctx, namespaces)
	if released > 0 {
		c.logger.Info("removed network namespaces of sandboxes whose start was interrupted", "count", released)
	}
	if err != nil && ctx.Err() == nil {
		c.logger.Warn("failed to remove unused network namespaces", "error", err)
	}
	config.RunOrphanCleanup(ctx, c.clock, containerd.OrphanCleanupPeriod, c.logger)
}

// ensureImages imports the images that no registry has: the sandbox's, and the demo's.
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
