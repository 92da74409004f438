// Command vm builds the virtual machine of the tests and runs commands in it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/vm"
)

const usage = `usage: vm [flags] [--] [SCRIPT]

Builds the image of the virtual machine if it is not in the cache, boots a machine, runs the shell script in it, and
ends with the script's exit code. Without a script it only builds the image. SIGINT, SIGTERM and SIGHUP interrupt the
script; a second one ends the machine.

flags:
`

// exitFailed is for what went wrong outside of the script, as ssh does it.
const exitFailed = 255

func main() {
	interrupted, ended := signalContexts()
	code, err := run(interrupted, ended, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
	}
	os.Exit(code)
}

// outcome returns the exit code, which is the script's if that ran and failed, and what else went wrong, to be printed. What comes after the
// script runs programs in the machine, too, whose exit codes are not the script's.
func outcome(script, after error) (int, error) {
	if exit, ok := script.(*vm.ExitError); ok { //nolint:errorlint // Run returns it as it is
		return exit.Code, after
	}
	if err := errors.Join(script, after); err != nil {
		return exitFailed, err
	}
	return 0, nil
}

// signalContexts returns a context that the first signal ends and one that the second signal ends.
func signalContexts() (first, second context.Context) {
	came := make(chan os.Signal, 2)
	signal.Notify(came, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	first, endFirst := context.WithCancelCause(context.Background())
	second, endSecond := context.WithCancelCause(context.Background())
	go func() {
		endFirst(errors.New((<-came).String()))
		endSecond(errors.New((<-came).String()))
	}()
	return first, second
}

// settings are what the flags say.
type settings struct {
	cache, dir       string
	release          vm.Release
	copyFrom, copyTo string
	check            bool
	options          vm.Options
}

func parse(args []string) (settings, string, error) {
	s := settings{release: vm.DefaultRelease}
	flags := flag.NewFlagSet("vm", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage); flags.PrintDefaults() }
	flags.StringVar(&s.cache, "cache", "bin/vm", "directory that the built image is kept in")
	flags.Var(&s.release, "release", "the release of Debian or Ubuntu: one of "+vm.Releases())
	flags.StringVar(&s.dir, "dir", "", "directory for the machine's disks and console log (default: a temporary one, removed at the end)")
	flags.Func("copy", "MACHINE_PATH:HOST_DIR: copy this from the machine after the script, even if it failed", func(text string) error {
		s.copyFrom, s.copyTo, _ = strings.Cut(text, ":")
		if !filepath.IsAbs(s.copyFrom) || s.copyTo == "" {
			return errors.New("want MACHINE_PATH:HOST_DIR, the first one absolute")
		}
		return nil
	})
	flags.BoolVar(&s.check, "check", false, "only check whether qemu can emulate a machine here")
	flags.IntVar(&s.options.CPUs, "cpus", 2, "number of CPUs")
	flags.IntVar(&s.options.Sockets, "sockets", 1, "number of sockets that the CPUs are spread over")
	flags.IntVar(&s.options.Threads, "threads", 1, "number of threads, which are CPUs, of each core")
	flags.IntVar(&s.options.NUMANodes, "numa", 0, "number of NUMA nodes that CPUs and memory are spread over")
	flags.IntVar(&s.options.MemoryMiB, "memory", 6144, "memory in MiB")
	flags.StringVar(&s.options.Accelerator, "accel", "", "kvm or tcg (default: kvm where it works)")
	flags.Func("disk", "size of a further disk in GiB; may be given several times", func(text string) error {
		size, err := strconv.Atoi(text)
		s.options.DisksGiB = append(s.options.DisksGiB, size)
		return err
	})
	flags.Func("share", "HOST_DIR:MACHINE_PATH: give the machine a read-only copy; may be given several times", func(text string) error {
		dir, path, ok := strings.Cut(text, ":")
		if !ok || dir == "" || !filepath.IsAbs(path) {
			return errors.New("want HOST_DIR:MACHINE_PATH, the second one absolute")
		}
		s.options.Shares = append(s.options.Shares, vm.Share{Dir: dir, Path: path})
		return nil
	})
	flags.Func("kernel-arg", "added to the kernel's command line; may be given several times", func(text string) error {
		s.options.KernelArgs = append(s.options.KernelArgs, text)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return s, "", err
	}
	return s, strings.Join(flags.Args(), " "), nil
}

// run does what the arguments say and returns the exit code. When the first context ends, the script is interrupted, and nothing else is
// begun; when the second one ends, the machine does.
func run(ctx, ended context.Context, args []string) (code int, err error) {
	s, script, err := parse(args)
	if err != nil {
		return exitFailed, err
	}
	if s.check {
		return outcome(nil, vm.Check(ctx))
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	image, err := vm.Build(ctx, s.cache, s.release, logger, os.Stderr)
	if err != nil || script == "" {
		return outcome(nil, err)
	}
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "vm-"); err != nil {
			return exitFailed, err
		}
		defer func() {
			if removed := os.RemoveAll(s.dir); removed != nil {
				code, err = cmp.Or(code, exitFailed), errors.Join(err, removed)
			}
		}()
	}
	machine, err := vm.Start(ctx, image, s.dir, s.options, logger)
	if err != nil {
		return exitFailed, err
	}
	result := machine.Run(ended, script, vm.IO{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Interrupt: ctx.Done()})
	var after error
	if s.copyTo != "" {
		after = machine.CopyFrom(ended, s.copyFrom, s.copyTo)
	}
	return outcome(result, errors.Join(after, machine.Close()))
}
