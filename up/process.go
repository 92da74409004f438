package up

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/pidfile"
	"github.com/berth-dev/berth/up/removal"
	"github.com/berth-dev/berth/up/supervisor"
)

// healthTimeout is how long a program may take to reply, and maxHealthFailures how often in a row it may not: a program that
// hangs is killed after some 40 s, one that is slow on a busy machine is not.
const (
	healthTimeout     = 10 * time.Second
	maxHealthFailures = 2
	// The API server may be slow without a fault of its own.
	maxControlplaneFailures = 3
)

// withDefaults completes a program of the cluster.
func (c *Cluster) withDefaults(p supervisor.Program) supervisor.Program {
	p.Env = append(cleanEnvironment(os.Environ()), p.Env...)
	if reload := c.certificateReload(); reload != 0 {
		p.Env = append(p.Env, certificateReloadVariable+"="+reload.String())
	}
	p.Log, p.PIDFile = cmp.Or(p.Log, c.Log(p.Name)), cmp.Or(p.PIDFile, c.pidFile(p.Name))
	return p
}

// program returns the function that runs a program: as a child of the supervisor if there is one, else of this process.
func (c *Cluster) program(p supervisor.Program) runFunc {
	p = c.withDefaults(p)
	if c.link == nil {
		p.Health = nil
		return p.Run
	}
	return func(ctx context.Context) error { return c.link.Run(ctx, p) }
}

// adopted reports whether a program has been running since before this process was started.
func (c *Cluster) adopted(name string) bool { return c.link != nil && c.link.Adopted(name) }

// The names of pid files end with pidSuffix; those of an isolated cluster's processes with insidePIDSuffix, because an ID means
// nothing outside of the cluster's PID namespace.
const (
	pidSuffix       = ".pid"
	insidePIDSuffix = ".inside-pid"
)

// pidFile is the file with the PID of a process of the cluster.
func (c *Cluster) pidFile(process string) string {
	if c.config.Inside != nil {
		return filepath.Join(c.RunDir, process+insidePIDSuffix)
	}
	return filepath.Join(c.RunDir, process+pidSuffix)
}

// stopStale stops the processes that an earlier run of this cluster left behind, and returns their names. It kills
// containerd: see containerd.StopSignal.
func stopStale(ctx context.Context, runDir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(runDir, "*"+pidSuffix))
	if err != nil {
		return nil, err
	}
	var ended []string
	for _, file := range files {
		if pid := pidfile.Running(pidfile.Proc, file); pid != 0 {
			name, end := strings.TrimSuffix(filepath.Base(file), pidSuffix), removal.StopProcess
			if name == containerdName {
				end = removal.KillProcess
			}
			if err := end(ctx, pid); err != nil {
				return ended, err
			}
			ended = append(ended, name)
		}
		if err := os.Remove(file); err != nil {
			if _, asideErr := atomicfile.SetAside(file); asideErr != nil { // it is a directory, for instance
				return ended, fmt.Errorf("remove a pid file of an earlier run: %w", errors.Join(err, asideErr))
			}
		}
	}
	return ended, nil
}
