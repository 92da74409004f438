package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/berth-dev/berth/conformance/internal/nodemachine"
	"github.com/berth-dev/berth/conformance/internal/suite"
)

// nodeCleanup bounds the cleanup of a suite that was interrupted in a slow machine, with the writing of its report.
const nodeCleanup = 10 * time.Minute

// nodeOptions is the command line of `conformance node`. It has many fields because each flag is one.
type nodeOptions struct {
	bin, out, scratch            string
	containerd, kubelet          string
	runtime                      string
	imageStore, release          string
	expected, list               string
	report, passed, results      string
	focus, skip                  string
	again                        string
	flags                        []string
	native, swap, quota          bool
	parallel, attempts, memory   int
	cpus, sockets, threads, numa int
	limit                        int
	timeout                      time.Duration
	kill                         <-chan struct{} // closed when a suite that was interrupted is to be killed
}

// The kubelets that the node suite can test.
const (
	kubeletBerth    = "berth"
	kubeletUpstream = "upstream"
)

// defaultNodeRuntime is the runtime of all Pods if none is named.
const defaultNodeRuntime = "runc"

// shims are the shims of the runtimes that the node suite can test.
var shims = map[string]string{"runc": "containerd-shim-runc-v2", "berth": "containerd-shim-berth-v1"}

// What --again may name: the specs to run once more although they have a result.
const (
	againFailed = "failed"
	againAll    = "all"
)

// nodeSuite is the program of the suite.
const nodeSuite = "e2e_node.test"

// serverStart bounds the start of each server of the node suite. An emulated machine takes minutes for an API server.
const serverStart = 10 * time.Minute

func parseNode(args []string) (nodeOptions, error) {
	var o nodeOptions
	flags := flag.NewFlagSet("conformance node", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin-dir", "", "the directory of make build, with conformance/ of build.sh in it")
	flags.StringVar(&o.out, "out", "", "directory of logs and of the suite's own report (default: conformance/node of the bin directory)")
	flags.StringVar(&o.scratch, "scratch", "/var/lib/berth-conformance-node", "with --native: directory of the node's data; it is emptied")
	flags.StringVar(&o.containerd, "containerd-script", "", "the script that installs containerd in the machine: vm/guest/containerd.sh")
	flags.StringVar(&o.imageStore, "image-store-script", "", "the script that unpacks images for a virtual machine, vm/imagestore.sh; without it the machine does so, slowly")
	flags.StringVar(&o.kubelet, "kubelet", kubeletBerth, "the kubelet to test: berth or upstream")
	flags.StringVar(&o.runtime, "runtime", defaultNodeRuntime, "the runtime of all Pods: runc, which is containerd's own shim, or berth")
	flags.StringVar(&o.expected, "expected", "", "the list of specs that must pass")
	flags.StringVar(&o.list, "list", "", "run exactly the specs of this list, which must all pass (default: those of --expected)")
	flags.StringVar(&o.report, "report", "", "the file to write the report to")
	flags.StringVar(&o.passed, "add-passed", "", "add the specs that passed to this list")
	flags.StringVar(&o.results, "results", "", "the file with the results of earlier runs: specs that have one are not run, and new ones are added")
	flags.StringVar(&o.again, "again", "", "run specs again that have a result: failed or all")
	flags.IntVar(&o.limit, "limit", 150, "how many specs to run at most; a further run continues")
	flags.StringVar(&o.focus, "focus", "", "run the specs whose name matches this regular expression instead of a list")
	flags.StringVar(&o.skip, "skip", "", "omit the specs whose name matches this regular expression")
	flags.BoolVar(&o.native, "native", false, "run in namespaces of this machine, which must have cgroup v1, instead of a virtual machine")
	flags.StringVar(&o.release, "release", "", "the virtual machine's release of Debian or Ubuntu (default: that of vm-run, whose -help lists all)")
	flags.BoolVar(&o.swap, "swap", false, "give the virtual machine swap, for the specs about it")
	flags.BoolVar(&o.quota, "quota", false, "give the virtual machine's kubelet a file system with project quotas, for the specs about them")
	flags.Func("suite-flag", "a flag for the suite, such as --standalone-mode, for the specs that want it; may be repeated", func(value string) error {
		o.flags = append(o.flags, value)
		return nil
	})
	flags.IntVar(&o.parallel, "parallel", 2, "how many specs run at once")
	flags.IntVar(&o.attempts, "attempts", 2, "attempts for each spec; the report names those that needed more than one")
	flags.IntVar(&o.memory, "memory", 6144, "the virtual machine's memory in MiB")
	flags.IntVar(&o.cpus, "cpus", 2, "the virtual machine's CPUs")
	flags.IntVar(&o.sockets, "sockets", 1, "the sockets that these CPUs are spread over")
	flags.IntVar(&o.threads, "threads", 1, "the threads, which are CPUs, of each core")
	flags.IntVar(&o.numa, "numa", 0, "the NUMA nodes that these CPUs and the memory are spread over")
	flags.DurationVar(&o.timeout, "timeout", 3*time.Hour, "time limit of the suite; what it ends has no result")
	if err := flags.Parse(args); err != nil {
		return nodeOptions{}, err
	}
	switch {
	case flags.NArg() > 0:
		return nodeOptions{}, fmt.Errorf("argument %q: there are flags only", flags.Arg(0))
	case o.bin == "" || o.containerd == "" || o.expected == "" || o.report == "" || o.results == "":
		return nodeOptions{}, errors.New("--bin-dir, --containerd-script, --expected, --report and --results are required; run-node.sh sets them")
	case o.kubelet != kubeletBerth && o.kubelet != kubeletUpstream:
		return nodeOptions{}, fmt.Errorf("--kubelet %q: want %s or %s", o.kubelet, kubeletBerth, kubeletUpstream)
	case shims[o.runtime] == "":
		return nodeOptions{}, fmt.Errorf("--runtime %q: want runc or berth", o.runtime)
	case o.focus != "" && o.list != "":
		return nodeOptions{}, errors.New("--focus and --list exclude each other")
	case o.native && (o.swap || o.quota || o.release != ""):
		return nodeOptions{}, errors.New("--swap, --quota and --release are for a virtual machine: omit --native")
	case o.attempts < 1 || o.parallel < 1 || o.limit < 1:
		return nodeOptions{}, fmt.Errorf("--attempts %d --parallel %d --limit %d: all must be at least 1", o.attempts, o.parallel, o.limit)
	case o.again != "" && o.again != againFailed && o.again != againAll:
		return nodeOptions{}, fmt.Errorf("--again %q: want %s or %s", o.again, againFailed, againAll)
	}
	return o, nil
}

// runNode runs specs of the node suite that have no result yet in a machine, adds their results to those of earlier runs and
// writes the report of all. Its error makes the command fail.
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
	records, err := suite.ReadRecords(o.results)
	if err != nil {
		return err
	}
	focus := o.focus
	if focus == "" {
		focus = suite.Exactly(expected)
	}
	known, selected, err := suite.List(ctx, filepath.Join(bin, "conformance", nodeSuite), filepath.Join(out, "list"), focus, o.skip)
	if err != nil {
		return err
	}
	pending := records.Pending(selected, func(r suite.Record) bool {
		return o.again == againAll || o.again == againFailed && r.State == suite.StateFailed
	})
	logf("%d specs are selected, %d of them have no result yet", len(selected), len(pending))
	var ended error
	if run := pending[:min(o.limit, len(pending))]; len(run) > 0 {
		if records, ended, err = o.runSpecs(ctx, bin, out, run, records); err != nil {
			return err
		}
	}
	if o.passed != "" {
		if expected, err = addPassed(o.passed, records); err != nil {
			return err
		}
	}
	result := records.Result(known, expected)
	if err := o.writeReport(result, records, bin, len(expected)); err != nil {
		return err
	}
	if left := records.Pending(selected, func(suite.Record) bool { return false }); len(left) > 0 {
		logf("%d of the selected specs have no result yet: run the same command again", len(left))
	}
	return errors.Join(ended, result.Verdict(o.focus == "" && o.skip == ""))
}

// runSpecs runs the specs in a machine and adds their results to the records and to the file of them. ended is why the run
// did not complete: it was interrupted, or the suite broke.
func (o nodeOptions) runSpecs(
	ctx context.Context, bin, out string, names []string, records suite.Records,
) (_ suite.Records, ended, err error) {
	layout, err := assemble(bin, out)
	if err != nil {
		return nil, nil, err
	}
	share := filepath.Join(out, "share")
	err = nodemachine.Write(share, nodemachine.Content{
		Programs: o.programs(bin), Containerd: o.containerd, Images: layout.Dir(),
		SandboxImage: imageutils.GetE2EImage(imageutils.Pause), Shim: shims[o.runtime], Extras: o.extras(),
		Command: suite.NodeCommand(suite.Config{
			Bin: nodemachine.Program(""), OutDir: nodemachine.Logs, Focus: suite.Exactly(names), Parallel: o.parallel,
			Attempts: o.attempts, Timeout: o.timeout,
		}, nodemachine.WorkDir, nodemachine.Config, serverStart, o.suiteFlags()...),
	})
	if err != nil {
		return nil, nil, err
	}
	if err := o.unpackImages(ctx, bin, share, layout.Dir()); err != nil {
		return nil, nil, err
	}
	logs, err := o.runInMachine(ctx, bin, out, share)
	if err != nil {
		return nil, nil, err
	}
	machine, err := os.ReadFile(filepath.Join(logs, "machine"))
	if err != nil {
		return nil, nil, fmt.Errorf("read what machine it was: %w", err)
	}
	report, err := suite.ReadReport(filepath.Join(logs, suite.ReportFile))
	if err != nil {
		return nil, nil, err
	}
	result := suite.Evaluate(report, nil)
	printFailures(result)
	records = records.Add(result, o.subject(bin), strings.TrimSpace(string(machine)))
	if err := replaceFile(o.results, records.Write); err != nil {
		return nil, nil, fmt.Errorf("write results %s: %w", o.results, err)
	}
	switch {
	case ctx.Err() != nil:
		ended = context.Cause(ctx)
	case result.Broken != "":
		ended = fmt.Errorf("the suite is broken: %s", result.Broken)
	}
	return records, ended, nil
}

// unpackImages gives a virtual machine the images as containerd stores them.
func (o nodeOptions) unpackImages(ctx context.Context, bin, share, layout string) error {
	if o.native || o.imageStore == "" {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "sh", o.imageStore, bin, layout, filepath.Join(share, nodemachine.Store)).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack images for the machine: %w: %s", err, out)
	}
	return nil
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
	for _, name := range []string{nodeSuite, "ginkgo", "conformance"} {
		programs[name] = filepath.Join(own, name)
	}
	for _, name := range []string{
		"berth", "containerd", "containerd-shim-runc-v2", "containerd-shim-berth-v1", "runc", "cni/berth", "cni/bridge", "cni/host-local", "cni/loopback", "cni/portmap",
	} {
		programs[name] = filepath.Join(bin, name)
	}
	return programs
}

// extras are what the machine is to have besides.
func (o nodeOptions) extras() []string {
	var extras []string
	if o.swap {
		extras = append(extras, nodemachine.Swap)
	}
	if o.quota {
		extras = append(extras, nodemachine.Quota)
	}
	return extras
}

// suiteFlags are what the suite has to know of the machine, and the flags that the user gives it.
func (o nodeOptions) suiteFlags() []string {
	if o.native {
		return o.flags
	}
	return append([]string{"--kubelet-flags=--runtime-cgroups=/system.slice/containerd.service"}, o.flags...)
}

// runInMachine runs the suite and returns the directory with its reports and logs. That specs failed is no error.
func (o nodeOptions) runInMachine(ctx context.Context, bin, out, share string) (logs string, err error) {
	log, err := os.Create(filepath.Join(out, "suite.log"))
	if err != nil {
		return "", fmt.Errorf("run node suite: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	logs = filepath.Join(out, filepath.Base(nodemachine.Logs))
	if o.native {
		logs = filepath.Join(o.scratch, "log", filepath.Base(nodemachine.Logs))
	}
	// The report of an earlier run would be taken for that of this one, if its suite does not begin.
	if err := os.RemoveAll(logs); err != nil {
		return "", fmt.Errorf("run node suite: %w", err)
	}
	var cmd *exec.Cmd
	if o.native {
		cmd = exec.CommandContext(ctx, "sh", filepath.Join(share, nodemachine.Isolate), share, o.scratch)
	} else {
		cmd = exec.CommandContext(ctx, filepath.Join(bin, "vm-run"), "-cache", filepath.Join(bin, "vm"),
			"-memory", strconv.Itoa(o.memory), "-cpus", strconv.Itoa(o.cpus), "-sockets", strconv.Itoa(o.sockets), "-threads", strconv.Itoa(o.threads),
			"-numa", strconv.Itoa(o.numa), "-kernel-arg", "net.ifnames=0", "-share", share+":"+nodemachine.MountPoint,
			"-copy", nodemachine.Logs+":"+out)
		if o.release != "" {
			cmd.Args = append(cmd.Args, "-release", o.release)
		}
		cmd.Args = append(cmd.Args, "--", nodemachine.Script)
		cmd.Stdin = bytes.NewReader(make([]byte, nodemachine.Received))
	}
	// A terminal's Ctrl-C is for this process, which stops the suite and then the machine.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = nodeCleanup
	cmd.Stdout, cmd.Stderr = log, log
	logf("running the node suite with the kubelet of %s and the runtime %s; its log is %s", o.kubelet, o.runtime, log.Name())
	if err = cmd.Start(); err == nil {
		err = o.wait(cmd)
	}
	if _, found := os.Stat(filepath.Join(logs, suite.ReportFile)); found != nil {
		return "", fmt.Errorf("run node suite: no report, see %s: %w", log.Name(), errors.Join(err, context.Cause(ctx)))
	}
	return logs, nil
}

// wait waits for the program that runs the machine. When a second signal comes it ends that at once.
func (o nodeOptions) wait(cmd *exec.Cmd) error {
	ended := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
		select {
		case <-o.kill:
			_ = cmd.Process.Signal(syscall.SIGTERM)
		case <-ended:
		}
	})
	err := cmd.Wait()
	close(ended)
	killing.Wait()
	return err
}
