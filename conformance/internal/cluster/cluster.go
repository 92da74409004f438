package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Config says where the cluster lies. All fields are required.
type Config struct {
	// Bin is the directory with berth and all that it starts.
	Bin string
	// DataDir is the cluster's alone: an earlier cluster in it is deleted.
	DataDir string
	// APIPort, PodCIDR and ServiceCIDR must be used by no other cluster of the machine.
	APIPort              int
	PodCIDR, ServiceCIDR string
	// Log is the file that takes what berth prints.
	Log string
	// Timeout bounds the start and the stop.
	Timeout time.Duration
}

// readyText is part of the line that berth prints when the cluster is ready.
const readyText = "is ready after"

// Cluster is a running `berth up`.
type Cluster struct {
	config Config
	cmd    *exec.Cmd
	log    *os.File
	ended  chan struct{}
	// err is how the process ended; read it after ended is closed.
	err error
}

// Start deletes what an earlier run left in the data directory, starts the cluster and returns once it is ready. ctx
// bounds the start alone: what has started runs until the caller calls Stop.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	log, err := os.Create(config.Log)
	if err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	c := &Cluster{config: config, log: log, ended: make(chan struct{})}
	c.cmd = exec.Command(c.Berth(), "up", "--reset", "--unsafe-no-fsync", "--bin-dir", config.Bin,
		"--data-dir", config.DataDir, "--api-port", strconv.Itoa(config.APIPort),
		"--pod-cidr", config.PodCIDR, "--service-cidr", config.ServiceCIDR)
	// Neither Ctrl-C at the terminal nor the end of ctx stops the cluster: the suite ends first, and then Stop stops it.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ready := newTextWaiter(readyText)
	output := io.MultiWriter(log, ready)
	c.cmd.Stdout, c.cmd.Stderr = output, output
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start cluster: %w", err), log.Close())
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	timer := time.NewTimer(config.Timeout)
	defer timer.Stop()
	select {
	case <-ready.seen:
		return c, nil
	case <-c.ended:
		err := fmt.Errorf("start cluster: berth ended before it was ready, see %s: %w", config.Log, c.err)
		return nil, errors.Join(err, log.Close())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("start cluster: %w", context.Cause(ctx)), c.Stop())
	case <-timer.C:
		return nil, errors.Join(fmt.Errorf("start cluster: not ready after %s, see %s", config.Timeout, config.Log), c.Stop())
	}
}

// Berth is the path of berth.
func (c *Cluster) Berth() string { return filepath.Join(c.config.Bin, "berth") }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.config.DataDir, "admin.kubeconfig") }

// Registries is the directory of the containerd's registry configuration.
func (c *Cluster) Registries() string {
	return filepath.Join(c.config.DataDir, "containerd", "certs.d")
}

// Ended is closed when the process has ended, stopped or not.
func (c *Cluster) Ended() <-chan struct{} { return c.ended }

// Import imports the images of an OCI layout into the cluster.
func (c *Cluster) Import(ctx context.Context, layout string) error {
	cmd := exec.CommandContext(ctx, c.Berth(), "--data-dir", c.config.DataDir, "images", "import", layout)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import images: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// Kubectl writes a script that is kubectl for this cluster and returns its path.
func (c *Cluster) Kubectl(dir string) (string, error) {
	path := filepath.Join(dir, "kubectl")
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' --data-dir '%s' kubectl \"$@\"\n", c.Berth(), c.config.DataDir)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		return "", fmt.Errorf("write kubectl: %w", err)
	}
	return path, nil
}

// Stop stops berth and waits for it, and kills it if that takes too long.
func (c *Cluster) Stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGINT) // it may have ended, which is handled below
	timer := time.NewTimer(c.config.Timeout)
	defer timer.Stop()
	select {
	case <-c.ended:
		if c.err != nil {
			return errors.Join(fmt.Errorf("stop cluster: berth failed, see %s: %w", c.config.Log, c.err), c.log.Close())
		}
		return c.log.Close()
	case <-timer.C:
		killed := c.cmd.Process.Kill()
		<-c.ended
		err := fmt.Errorf("stop cluster: still running after %s, killed, see %s", c.config.Timeout, c.config.Log)
		return errors.Join(err, killed, c.log.Close())
	}
}

// textWaiter is a writer that detects when a text has been written.
type textWaiter struct {
	text []byte
	seen chan struct{}
	once sync.Once

	mu   sync.Mutex
	tail []byte
}

func newTextWaiter(words string) *textWaiter {
	return &textWaiter{text: []byte(words), seen: make(chan struct{})}
}

// Write keeps only as much as could be the beginning of the text.
func (w *textWaiter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tail = append(w.tail, p...)
	if bytes.Contains(w.tail, w.text) {
		w.once.Do(func() { close(w.seen) })
	}
	if keep := len(w.text); len(w.tail) > keep {
		w.tail = append(w.tail[:0], w.tail[len(w.tail)-keep:]...)
	}
	return len(p), nil
}
