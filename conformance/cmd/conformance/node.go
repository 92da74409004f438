package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/berth-dev/berth/conformance/internal/nodemachine"
	"github.com/berth-dev/berth/conformance/internal/suite"
)

// nodeOptions is the command line of `conformance node`. It has many fields because each flag is one.
type nodeOptions struct {
	bin, out, scratch          string
	containerd, kubelet        string
	expected, list             string
	report, passed             string
	focus, skip                string
	native                     bool
	parallel, attempts, memory int
	timeout                    time.Duration
}

// The kubelets that the node suite can test.
const (
	kubeletBerth    = "berth"
	kubeletUpstream = "upstream"
)

// serverStart bounds the start of each server of the node suite. An emulated machine takes minutes for an API server.
const serverStart = 10 * time.Minute

func parseNode(args []string) (nodeOptions, error) {
	var o nodeOptions
	flags := flag.NewFlagSet("conformance node", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin-dir", "", "the directory of make build, with conformance/ of build.sh in it")
	flags.StringVar(&o.out, "out", "", "directory of logs and of the suite's own report (default: conformance/node of the bin directory)")
	flags.StringVar(&o.scratch, "scratch", "/var/lib/berth-conformance-node", "with --native: directory of the node's data; it is emptied")
	flags.StringVar(&o.containerd, "containerd-script", "", "the script that installs containerd in the machine: vm/guest/containerd.sh")
	flags.StringVar(&o.kubelet, "kubelet", kubeletBerth, "the kubelet to test: berth or upstream")
	flags.StringVar(&o.expected, "expected", "", "the list of specs that must pass")
	flags.StringVar(&o.list, "list", "", "run exactly the specs of this list, which must all pass (default: those of --expected)")
	flags.StringVar(&o.report, "report", "", "the file to write the report to")
	flags.StringVar(&o.passed, "add-passed", "", "add the specs that passed to this list")
	flags.StringVar(&o.focus, "focus", "", "run the specs whose name matches this regular expression instead of a list")
	flags.StringVar(&o.skip, "skip", "", "omit the specs whose name matches this regular expression")
	flags.BoolVar(&o.native, "native", false, "run in namespaces of this machine, which must have cgroup v1, instead of a virtual machine")
	flags.IntVar(&o.parallel, "parallel", 2, "how many specs run at once")
	flags.IntVar(&o.attempts, "attempts", 2, "attempts for each spec; the report names those that needed more than one")
	flags.IntVar(&o.memory, "memory", 6144, "the virtual machine's memory in MiB")
	flags.DurationVar(&o.timeout, "timeout", 3*time.Hour, "time limit of the suite")
	if err := flags.Parse(args); err != nil {
		return nodeOptions{}, err
	}
	switch {
	case flags.NArg() > 0:
		return nodeOptions{}, fmt.Errorf("argument %q: there are flags only", flags.Arg(0))
	case o.bin == "" || o.containerd == "" || o.expected == "" || o.report == "":
		return nodeOptions{}, errors.New("--bin-dir, --containerd-script, --expected and --report are required; run-node.sh sets them")
	case o.kubelet != kubeletBerth && o.kubelet != kubeletUpstream:
		return nodeOptions{}, fmt.Errorf("--kubelet %q: want %s or %s", o.kubelet, kubeletBerth, kubeletUpstream)
	case o.focus != "" && o.list != "":
		return nodeOptions{}, errors.New("--focus and --list exclude each other")
	case o.attempts < 1 || o.parallel < 1:
		return nodeOptions{}, fmt.Errorf("--attempts %d --parallel %d: both must be at least 1", o.attempts, o.parallel)
	}
	return o, nil
}

// runNode runs the node suite in a machine and writes the report. Its error makes the command fail.
func runNode(ctx context.Context, o nodeOptions) error {
	if o.list != "" {
		o.expected = o.list
	}
	expected, err := suite.ReadList(o.expected)
	if err != nil && (o.focus == "" || !errors.Is(err, os.ErrNotExist)) {
		return err
	}
	bin, out, err := o.dirs()
	if err != nil {
		return err
	}
	layout, err := assemble(bin, out)
	if err != nil {
		return err
	}
	focus := o.focus
	if focus == "" {
		focus = suite.Exactly(expected)
	}
	share := filepath.Join(out, "share")
	err = nodemachine.Write(share, nodemachine.Content{
		Programs: o.programs(bin), Containerd: o.containerd, Images: layout.Dir(),
		SandboxImage: imageutils.GetE2EImage(imageutils.Pause),
		Command: suite.NodeCommand(suite.Config{
			Bin: nodemachine.Program(""), OutDir: nodemachine.Logs, Focus: focus, Skip: o.skip, Parallel: o.parallel,
			Attempts: o.attempts, Timeout: o.timeout,
		}, nodemachine.WorkDir, nodemachine.Config, serverStart, o.suiteFlags()...),
	})
	if err != nil {
		return err
	}
	logs, err := o.runInMachine(ctx, bin, out, share)
	if err != nil {
		return err
	}
	report, err := suite.ReadReport(filepath.Join(logs, suite.ReportFile))
	if err != nil {
		return err
	}
	result := suite.Evaluate(report, expected)
	if err := o.writeReport(result, bin, logs, len(expected)); err != nil {
		return err
	}
	if o.passed != "" {
		if err := addPassed(o.passed, result); err != nil {
			return err
		}
	}
	return result.Verdict(o.focus == "" && o.skip == "")
}

func (o nodeOptions) dirs() (bin, out string, err error) {
	if o.out == "" {
		o.out = filepath.Join(o.bin, "conformance", "node")
	}
	return options{bin: o.bin, out: o.out}.dirs()
}

// programs are what the machine gets.
func (o nodeOptions) programs(bin string) map[string]string {
	own := filepath.Join(bin, "conformance")
	programs := map[string]string{"kubelet": filepath.Join(bin, "berth")}
	if o.kubelet == kubeletUpstream {
		programs["kubelet"] = filepath.Join(own, "kubelet")
	}
	for _, name := range []string{"e2e_node.test", "ginkgo", "conformance"} {
		programs[name] = filepath.Join(own, name)
	}
	for _, name := range []string{
		"berth", "containerd", "containerd-shim-runc-v2", "runc", "cni/bridge", "cni/host-local", "cni/loopback", "cni/portmap",
	} {
		programs[name] = filepath.Join(bin, name)
	}
	return programs
}

// suiteFlags are what the suite has to know of the machine.
func (o nodeOptions) suiteFlags() []string {
	if o.native {
		return nil
	}
	return []string{"--kubelet-flags=--runtime-cgroups=/system.slice/containerd.service"}
}

// runInMachine runs the suite and returns the directory with its reports and logs. That specs failed is no error.
func (o nodeOptions) runInMachine(ctx context.Context, bin, out, share string) (logs string, err error) {
	log, err := os.Create(filepath.Join(out, "suite.log"))
	if err != nil {
		return "", fmt.Errorf("run node suite: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	var cmd *exec.Cmd
	if o.native {
		logs = filepath.Join(o.scratch, "log", filepath.Base(nodemachine.Logs))
		cmd = exec.CommandContext(ctx, "sh", filepath.Join(share, nodemachine.Isolate), share, o.scratch)
	} else {
		logs = filepath.Join(out, filepath.Base(nodemachine.Logs))
		if err := os.RemoveAll(logs); err != nil {
			return "", fmt.Errorf("run node suite: %w", err)
		}
		cmd = exec.CommandContext(ctx, filepath.Join(bin, "vm-run"), "-cache", filepath.Join(bin, "vm"),
			"-memory", strconv.Itoa(o.memory), "-share", share+":"+nodemachine.MountPoint,
			"-copy", nodemachine.Logs+":"+out, "--", nodemachine.Script)
	}
	// A terminal's Ctrl-C is for this process, which stops the machine.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr = log, log
	logf("running the node suite with the kubelet of %s; its log is %s", o.kubelet, log.Name())
	err = cmd.Run()
	if _, found := os.Stat(filepath.Join(logs, suite.ReportFile)); found != nil || ctx.Err() != nil {
		return "", fmt.Errorf("run node suite: no report, see %s: %w", log.Name(), errors.Join(err, context.Cause(ctx)))
	}
	return logs, nil
}

func (o nodeOptions) writeReport(result suite.Result, bin, logs string, expected int) error {
	subject := versionLine(filepath.Join(bin, "berth"), "version")
	command := "make conformance-node KUBELET=" + o.kubelet
	if o.kubelet == kubeletUpstream {
		subject = "upstream's kubelet " + strings.TrimPrefix(versionLine(filepath.Join(bin, "conformance", "kubelet"), "--version"), "Kubernetes ")
	}
	if o.native {
		command += " NATIVE=1"
	}
	for name, value := range map[string]string{"FOCUS": o.focus, "SKIP": o.skip, "LIST": o.list} {
		if value != "" {
			command += fmt.Sprintf(" %s='%s'", name, value)
		}
	}
	machine, err := os.ReadFile(filepath.Join(logs, "machine"))
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return publish(result, o.report, suite.Header{
		Title: "The node suite", Command: command, Subject: subject, Machine: strings.TrimSpace(string(machine)),
		Suite: versionLine("cat", filepath.Join(bin, "conformance", "upstream-version")), Expected: expected, List: filepath.Base(o.expected),
	})
}

// addPassed adds the names of the specs that passed to a list, which is kept sorted. A comment at its beginning stays.
func addPassed(path string, result suite.Result) error {
	names, err := suite.ReadList(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, suite.ErrEmpty) {
		return err
	}
	for _, spec := range result.Specs {
		if spec.Passed {
			names = append(names, spec.Name)
		}
	}
	slices.Sort(names)
	comment, err := leadingComment(path)
	if err != nil {
		return fmt.Errorf("add to list of specs: %w", err)
	}
	err = replaceFile(path, func(w io.Writer) error {
		_, err := io.WriteString(w, comment+strings.Join(slices.Compact(names), "\n")+"\n")
		return err
	})
	if err != nil {
		return fmt.Errorf("add to list of specs: %w", err)
	}
	return nil
}

// leadingComment returns the lines with # at the beginning of a file.
func leadingComment(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var comment strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		comment.WriteString(line)
	}
	return comment.String(), nil
}
