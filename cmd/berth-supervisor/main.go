// Command berth-supervisor starts the processes of a cluster and starts them again when they end. `berth up` becomes this
// program.
//
// It is a program of its own because it must outlive everything else of the cluster: it has no Kubernetes client, and needs a few
// MiB.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/up/progress"
	"github.com/berth-dev/berth/up/supervisor"
)

func main() {
	if err := run(signals.Context()); err != nil {
		fmt.Fprintf(os.Stderr, "berth: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	signals.IgnoreSIGPIPE() // the cluster runs on when the reader of its output is gone
	plan, err := supervisor.ReadPlan()
	if err != nil {
		return fmt.Errorf("%s: %w", supervisor.ProgramName, err)
	}
	file, err := os.OpenFile(plan.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open berth's log: %w", err)
	}
	defer file.Close()
	clock := clock.RealClock{}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read systemd's watchdog timeout (WatchdogSec of the unit): %w", err)
	}
	s, err := supervisor.New(supervisor.Deps{
		Display: progress.New(os.Stdout, terminalWidth(), clock),
		Logger:  slog.New(slog.NewTextHandler(file, nil)).With("component", "supervisor"), Clock: clock,
		Notify: notify, Watchdog: watchdog,
	}, plan)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// notify sends a state to systemd, if that has started this process.
func notify(state string) error {
	_, err := daemon.SdNotify(false, state)
	return err
}

// terminalWidth returns a function with the width of the terminal; nil if standard output is none.
func terminalWidth() func() int {
	fd := int(os.Stdout.Fd())
	if _, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err != nil {
		return nil
	}
	return func() int {
		size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err != nil {
			return 0
		}
		return int(size.Col)
	}
}
