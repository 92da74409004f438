// Package disposable starts clusters that live no longer than the process that starts them, each in a temporary directory and in namespaces
// of its own: the kernel ends a cluster with its process, and the next start removes the files. Clusters start from a copy of one that was
// saved, which the first start of the same programs makes.
//
// A Pool starts clusters before they are wanted. Processes take them over a unix socket, and a cluster ends with the connection.
package disposable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/up/isolate"
)

// stopTimeout bounds the stop of a cluster whose start failed, and the removal of what a killed one leaves.
const stopTimeout = 2 * time.Minute

// apiOnlyFlag is the flag of `berth up` for clusters without a Node.
const apiOnlyFlag = "--api-only"

// Config says how clusters start. Berth and Root are required.
type Config struct {
	// Berth is the program.
	Berth string
	// Root is the directory of the clusters' files and of the saved one; it is made.
	Root string
	// Args are further flags of `berth up`.
	Args []string
	// OnLine is called with each line that `berth up` prints, and with what this package reports; nil drops them.
	OnLine func(line string)
}

func (c Config) report(line string) {
	if c.OnLine != nil {
		c.OnLine(line)
	}
}

// Cluster is a running cluster. Its methods are safe for concurrent use, but only one of Stop and End may be called, once.
type Cluster struct {
	berth, dir string
	pid        int
	ender      ender
}

// ender ends a cluster and removes its files. If it does not stop within timeout, it is killed, which is an error unless force is set.
type ender interface {
	end(timeout time.Duration, force bool) error
	// discard is end with force for a cluster whose files no user reads: they are removed even if it has failed.
	discard(timeout time.Duration) error
}

// Dir is the cluster's directory, in which the caller may make files.
func (c *Cluster) Dir() string { return c.dir }

// DataDir is its data directory.
func (c *Cluster) DataDir() string { return filepath.Join(c.dir, dataDir) }

// Kubeconfig is a kubeconfig file with all rights.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.DataDir(), "admin.kubeconfig") }

// PID is the process of `berth up`, outside of the cluster's namespaces.
func (c *Cluster) PID() int { return c.pid }

// Run runs a command of berth on the cluster and returns what it prints.
func (c *Cluster) Run(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, c.berth, append([]string{"--data-dir", c.DataDir()}, args...)...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("berth %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Stop ends the cluster in order and removes its files. One that does not stop within timeout is killed; its files stay then, because they say
// why.
func (c *Cluster) Stop(timeout time.Duration) error { return c.ender.end(timeout, false) }

// End is Stop for a cluster that may be killed after timeout: that is no error.
func (c *Cluster) End(timeout time.Duration) error { return c.ender.end(timeout, true) }

// Start starts a cluster and waits until it is ready, or ctx ends. It starts from the saved one, and makes that if it does not exist.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if config.Berth == "" || config.Root == "" {
		return nil, errors.New("disposable: Config.Berth and Root are required")
	}
	if os.Geteuid() != 0 { // saving a cluster needs root
		return StartFrom(ctx, config, nil)
	}
	base, err := baseOf(config.Root, config.Berth, config.Args)
	if err != nil {
		return nil, err
	}
	if flags := base.flags(); flags != nil {
		c, err := StartFrom(ctx, config, flags)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		config.report("starting from a saved cluster failed, starting from nothing: " + err.Error())
		if err := base.delete(); err != nil {
			return nil, err
		}
	}
	c, err := StartFrom(ctx, config, nil)
	if err != nil {
		return nil, err
	}
	if err := base.save(ctx, c); err != nil {
		config.report("the next start is as slow as this one: " + err.Error())
	}
	return c, nil
}

// StartFrom is Start with the flags of `berth up` that say what the cluster begins as a copy of; without any it begins from nothing.
func StartFrom(ctx context.Context, config Config, base []string) (*Cluster, error) {
	files, err := makeDirectory(ctx, config.Root)
	if err != nil {
		return nil, err
	}
	turn, err := takeTurn(ctx, config.Root)
	if err != nil {
		return nil, errors.Join(err, files.remove())
	}
	defer turn.stop()
	process, err := startProcess(config.Berth, config.arguments(files.data(), base), func(line string) {
		if SaysNodeReady(line) {
			turn.end()
		}
		config.report(line)
	})
	if err != nil {
		return nil, fmt.Errorf("%w (%v)", err, files.remove())
	}
	own := &owned{process: process, files: files}
	if err := process.waitReady(ctx); err != nil {
		return nil, fmt.Errorf("%w (%v)", err, own.discard(stopTimeout))
	}
	return &Cluster{berth: config.Berth, dir: files.path, pid: process.cmd.Process.Pid, ender: own}, nil
}

// arguments are those of berth. The machine's configuration is not of these clusters.
func (c Config) arguments(dataDir string, base []string) []string {
	args := []string{"--data-dir", dataDir, "up", "--config", "", "--isolated", "--api-port", "0", "--unsafe-no-fsync", "--node-name", "node"}
	if !slices.Contains(c.Args, apiOnlyFlag) {
		args = append(args, "--start-lock", filepath.Join(c.Root, startLock))
	}
	return slices.Concat(args, base, c.Args)
}

// owned is a cluster that this process has started.
type owned struct {
	process *process
	files   *directory
}

func (o *owned) discard(timeout time.Duration) error {
	if err := o.end(timeout, true); err != nil {
		return errors.Join(err, o.files.remove())
	}
	return nil
}

func (o *owned) end(timeout time.Duration, force bool) error {
	err := o.process.stop(timeout)
	if errors.Is(err, errKilled) && force {
		err = o.waitReleased()
	}
	if err != nil {
		return err // its files say why
	}
	return o.files.remove()
}

// waitReleased waits until the first process of a cluster that was killed has removed what the kernel does not.
func (o *owned) waitReleased() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	lock, err := filelock.Wait(ctx, clock.RealClock{}, filepath.Join(o.files.data(), isolate.LockName))
	if errors.Is(err, os.ErrNotExist) { // it was killed before it made its data directory
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w; wait for what is left of it: %w", errKilled, err)
	}
	return lock.Close()
}
