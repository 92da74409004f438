package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/podrun"
	"github.com/berth-dev/berth/version"
)

type runFlags struct {
	file, runtime, root, podCIDR string
	archives                     []string
	wait, remove                 bool
	verbosity                    int
}

func newRun() *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use: "run -f FILE", Short: "Run a Pod in the foreground, with nothing but containerd", Args: noArgs,
		Long: "Runs the Pod of a manifest without any cluster, prints the output of its containers, and exits with its exit code:\n" +
			"that of the first container that did not exit with 0. Ctrl-C stops the Pod with its grace period and removes it;\n" +
			"so do SIGTERM, closing the terminal, and closing the output, as in `berth run | head`. The exit code is then 128\n" +
			"plus the signal's number: 130, 143, 129 and 141.\n\n" +
			"Without --container-runtime-endpoint, berth starts its own containerd below --root-dir. With it, Pods of others on\n" +
			"that runtime are never touched; a kubelet that manages that runtime will remove this Pod, because it does not know it.",
		Example: "  berth run -f pod.yaml\n  generate-pod | berth run -f -\n" +
			"  berth run -f pod.yaml --container-runtime-endpoint unix:///run/containerd/containerd.sock",
		RunE: func(cmd *cobra.Command, _ []string) error { return flags.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVarP(&flags.file, "filename", "f", "", "the Pod's manifest, YAML or JSON; - reads standard input (required)")
	f.BoolVar(&flags.wait, "wait", true, "wait until the Pod ends; with --wait=false, return when it runs and leave it running")
	f.BoolVar(&flags.remove, "remove", false, "stop and remove the Pod that an earlier run with --wait=false left running")
	f.StringVar(&flags.runtime, "container-runtime-endpoint", "", "CRI socket of a running containerd (default: start one)")
	f.StringArrayVar(&flags.archives, "image-archive", nil, "import the images of this archive (docker save, OCI) first; repeatable")
	f.StringVar(&flags.root, "root-dir", "/var/lib/berth-run", "directory of Pods' files and of the images of berth's own containerd")
	f.StringVar(&flags.podCIDR, "pod-cidr", "10.87.0.0/24", "addresses of Pods on berth's own containerd")
	f.IntVarP(&flags.verbosity, "verbosity", "v", 0, "verbosity: 1 prints events, 2 also the kubelet's log")
	return cmd
}

func (f runFlags) run(cmd *cobra.Command) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	pod, err := f.pod(cmd.InOrStdin())
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("berth run makes mounts and cgroups, so it must run as root (now uid %d): use sudo", os.Geteuid())
	}
	root, err := filepath.Abs(f.root)
	if err != nil {
		return fmt.Errorf("--root-dir %q: %w", f.root, err)
	}
	home := filepath.Join(root, "pods", string(pod.UID))
	unlock, err := lockDir(home, fmt.Sprintf("pod %q is being run from this manifest already", pod.Name))
	if err != nil {
		return err
	}
	printf := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), "berth: "+format+"\n", args...) }
	defer func() {
		switch left := unlock(); {
		case left != nil && err != nil: // which has the Pod's exit code, perhaps
			printf("%v", left)
		case left != nil:
			err = left
		}
	}()

	signals.IgnoreSIGPIPE() // else the Pod would be left running
	if f.wait {
		cmd.SetContext(contextUntilOutputBreaks(cmd))
	}
	endpoint := f.runtime
	stopRuntime := func() error { return nil }
	if endpoint == "" {
		own, err := startRuntime(cmd.Context(), root, f.podCIDR, printf)
		if err != nil {
			return err
		}
		endpoint, stopRuntime = "unix://"+own.config.Socket(), own.stop
	}
	var result podrun.Result
	if err = f.importImages(cmd.Context(), strings.TrimPrefix(endpoint, "unix://"), printf); err == nil {
		result, err = f.foreground(cmd, pod, home, endpoint, printf)
	}
	if err = errors.Join(err, stopRuntime()); err != nil {
		return err
	}
	if why := podrun.Explain(&result.Status); why != "" && !f.remove {
		printf("pod %s failed: %s", pod.Name, why)
	}
	switch {
	case result.Interrupted:
		return signalExitCode(cmd.Context())
	case result.ExitCode != 0:
		return exitCode(result.ExitCode)
	}
	return nil
}

func (f runFlags) check() error {
	switch {
	case f.file == "":
		return usageError{errors.New("no Pod given: name its manifest with -f FILE, or -f - for standard input")}
	case (!f.wait || f.remove) && f.runtime == "":
		return usageError{errors.New("--wait=false and --remove need --container-runtime-endpoint: " +
			"berth's own containerd stops with this command")}
	case f.runtime != "" && !strings.HasPrefix(f.runtime, "unix://"):
		return usageError{fmt.Errorf("--container-runtime-endpoint %q: want unix:///path/to/socket", f.runtime)}
	case f.runtime != "":
		if _, err := os.Stat(strings.TrimPrefix(f.runtime, "unix://")); err != nil {
			return fmt.Errorf("--container-runtime-endpoint %s: is a container runtime running there? %w", f.runtime, err)
		}
	}
	return nil
}

// pod reads the only Pod of the manifest.
func (f runFlags) pod(stdin io.Reader) (*corev1.Pod, error) {
	location, reader := "standard input", stdin
	if f.file != "-" {
		path, err := filepath.Abs(f.file)
		if err != nil {
			return nil, fmt.Errorf("-f %q: %w", f.file, err)
		}
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		defer file.Close()
		location, reader = path, file
	}
	data, err := io.ReadAll(io.LimitReader(reader, config.MaxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", location, err)
	}
	pods, err := config.Decode(data, config.SourceInfo{Source: config.SourceFile, Location: location})
	if errors.Is(err, config.ErrReference) {
		return nil, fmt.Errorf("manifest %s: %w, and berth run has none: write emptyDir, hostPath or the values themselves "+
			"in its place, or start a cluster with `berth up` and apply the manifest there", location, err)
	}
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", location, err)
	}
	if len(pods) != 1 {
		return nil, fmt.Errorf("manifest %s: it holds %d Pods, and one is run at a time", location, len(pods))
	}
	return pods[0], nil
}

// importImages imports the archives' images and prints their names: the manifest has to use one of them.
func (f runFlags) importImages(ctx context.Context, socket string, printf func(string, ...any)) (err error) {
	if len(f.archives) == 0 {
		return nil
	}
	store, err := imagestore.Open(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	for _, path := range f.archives {
		archive, err := imagestore.FromPath(path)
		if err != nil {
			return fmt.Errorf("--image-archive: %w", err)
		}
		imported, err := store.Import(ctx, archive, imagestore.ImportOptions{})
		if err = errors.Join(err, archive.Close()); err != nil {
			return fmt.Errorf("--image-archive %s: %w", path, err)
		}
		for _, image := range imported {
			printf("imported %s", image.Name)
		}
	}
	return nil
}

// foreground runs the Pod on a kubelet of its own below home, and cleans up afterwards.
func (f runFlags) foreground(cmd *cobra.Command, pod *corev1.Pod, home, endpoint string,
	printf func(string, ...any),
) (result podrun.Result, err error) {
	host, err := os.Hostname()
	if err != nil {
		return result, fmt.Errorf("find the host name: %w", err)
	}
	node, err := agent.New(agent.Deps{
		Logger: f.logger(cmd), Recorder: &eventPrinter{printf: printf, all: f.verbosity > 0},
	}, agent.Config{
		Node:    agent.NodeConfig{Name: strings.ToLower(host), IPs: []net.IP{hostAddress()}, Version: version.Kubelet()},
		RootDir: filepath.Join(home, "kubelet"), Logs: agent.LogsConfig{PodsDir: filepath.Join(home, "log")},
		Runtime: agent.RuntimeConfig{Endpoint: endpoint}, Cgroups: agent.CgroupConfig{Root: "/berth-run-" + string(pod.UID)},
		OOMScoreAdj: ptr.To(agent.DefaultOOMScoreAdj),
	})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	result, err = podrun.Run(cmd.Context(), podrun.Config{Pod: pod, Detach: !f.wait, Remove: f.remove}, podrun.Deps{
		Node: node, Out: podrun.LineWriter(cmd.OutOrStdout()), Err: podrun.LineWriter(cmd.ErrOrStderr()), Printf: printf,
	})
	if err != nil {
		return result, err
	}
	if !f.wait && !f.remove && !result.Interrupted && result.ExitCode == 0 {
		printf("pod %s runs; stop it with the same command and --remove", pod.Name)
		return result, nil
	}
	if err := node.Cleanup(context.WithoutCancel(cmd.Context())); err != nil {
		return result, err
	}
	// Cleanup has unmounted everything below home.
	if err := os.RemoveAll(home); err != nil {
		return result, fmt.Errorf("remove the files of pod %q: %w", pod.Name, err)
	}
	if result.Output != nil && result.ExitCode == 0 && !result.Interrupted {
		return result, fmt.Errorf("pod %q succeeded, but its output is incomplete: %w", pod.Name, result.Output)
	}
	return result, nil
}

func (f runFlags) logger(cmd *cobra.Command) *slog.Logger {
	if f.verbosity < 2 {
		silent := slog.New(slog.DiscardHandler)
		klog.SetSlogLogger(silent)
		return silent
	}
	logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	klog.SetSlogLogger(logger)
	return logger
}

// hostAddress returns the machine's source address towards other networks, or the loopback address.
func hostAddress() net.IP {
	// Connecting a datagram socket sends nothing: it only makes the kernel choose a route. The address is one that
	// RFC 5737 reserves for documentation.
	connection, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		return net.IPv4(127, 0, 0, 1)
	}
	defer connection.Close()
	return connection.LocalAddr().(*net.UDPAddr).IP
}

// lockDir creates the directory and locks it until unlock is called or the process ends; unlock removes the lock, and the directory if it is
// empty. The error starts with busy if another process holds the lock.
func lockDir(dir, busy string) (unlock func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return nil, fmt.Errorf("make directory %q: %w", filepath.Dir(dir), err)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make directory %q: %w", dir, err)
	}
	path := dir + ".lock"
	file, err := filelock.Acquire(path)
	if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
		return nil, fmt.Errorf("%s by another berth run (%s, which holds %s)", busy, held.Holder(), path)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", dir, err)
	}
	return func() error {
		left := os.Remove(dir)
		if errors.Is(left, unix.ENOTEMPTY) { // a Pod runs on
			left = nil
		}
		var errs []error
		for _, err := range []error{left, os.Remove(path), file.Close()} {
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("clean up after the run: %w", err))
			}
		}
		return errors.Join(errs...)
	}, nil
}
