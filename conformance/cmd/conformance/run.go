package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/conformance/internal/cluster"
	"github.com/berth-dev/berth/conformance/internal/mirror"
	"github.com/berth-dev/berth/conformance/internal/oci"
	"github.com/berth-dev/berth/conformance/internal/stubimages"
	"github.com/berth-dev/berth/conformance/internal/suite"
)

// run starts a cluster, runs the suite and writes the report. Its error makes the command fail.
func run(ctx context.Context, o options) (err error) {
	expected, err := o.specs()
	if err != nil {
		return err
	}
	bin, out, err := o.dirs()
	if err != nil {
		return err
	}
	earlier, err := o.earlier(out, expected)
	if err != nil {
		return err
	}
	layout := oci.Open(o.images)
	if o.images == "" {
		if layout, err = assemble(bin, out); err != nil {
			return err
		}
	}
	stop, running, err := start(ctx, o, layout, bin, out)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	return runAndReport(ctx, o, running, bin, out, expected, earlier)
}

// earlier returns the results of earlier runs that this one continues; none if it begins anew. It fails if there is nothing left
// to run.
func (o *options) earlier(out string, expected []string) (suite.Records, error) {
	if !o.resume {
		return nil, nil
	}
	records, err := suite.ReadRecords(filepath.Join(out, resultsFile))
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("--resume: there are no results in %s: omit it", filepath.Join(out, resultsFile))
	}
	if len(records.Pending(expected, suite.Record.Failed)) == 0 {
		return nil, errors.New("--resume: each spec of the list has passed: omit it to run them again")
	}
	return records, nil
}

// resultsFile is the file in the output directory with the result of each spec, for a run that continues this one.
const resultsFile = "results.jsonl"

// specs returns the names of the specs that must pass.
func (o *options) specs() ([]string, error) {
	switch {
	case o.conformance:
		o.expected = "upstream's conformance.yaml"
		return suite.Required()
	case o.list != "":
		o.expected = o.list
	}
	return suite.ReadList(o.expected)
}

// machines are the nodes of the cluster.
type machines struct {
	*cluster.Cluster
	second *cluster.Node // nil if there is none
}

// secondEnded is closed when the second node's process has ended; nil if there is none.
func (m machines) secondEnded() <-chan struct{} {
	if m.second == nil {
		return nil
	}
	return m.second.Ended()
}

// start starts the cluster with its second node and imports the images. The function that it returns stops all that has
// been started, also after an error.
func start(ctx context.Context, o options, layout oci.Layout, bin, out string) (stop func() error, running machines, err error) {
	var stops []func() error
	stop = func() error {
		var errs []error
		for _, one := range slices.Backward(stops) {
			errs = append(errs, one())
		}
		return errors.Join(errs...)
	}
	link, err := cluster.NewLink(ctx, o.secondNode, o.nodeNetwork)
	if err != nil {
		return stop, machines{}, err
	}
	stops = append(stops, func() error { return link.Remove(context.WithoutCancel(ctx)) })
	logf("starting a cluster in %s", o.dataDir)
	first, err := cluster.Start(ctx, cluster.Config{
		Bin: bin, DataDir: o.dataDir, APIPort: o.apiPort, PodCIDR: o.podCIDR, ServiceCIDR: o.serviceCIDR, APIAddress: link.Host.String(),
		Runtime: o.runtime, KubeletRoot: o.kubeletRoot, KubeletService: o.kubeletService,
		Log: filepath.Join(out, "berth.log"), Timeout: o.startTimeout,
	})
	if err != nil {
		return stop, machines{}, err
	}
	stops = append(stops, first.Stop)
	nodes := machines{Cluster: first}
	if !o.oneNode {
		if nodes.second, err = first.Join(ctx, link, o.secondNode, o.dataDir+"-2", filepath.Join(out, "berth-2.log")); err != nil {
			return stop, machines{}, err
		}
		stops = append(stops, nodes.second.Stop)
	}
	if !o.conformance { // no [Conformance] spec reads a node's directory
		unlink, err := linkKubelet(first.KubeletDir())
		if err != nil {
			return stop, machines{}, err
		}
		stops = append(stops, unlink)
	}
	closeMirror, err := serveMirror(layout, link.Host, nodes.registries()...)
	if err != nil {
		return stop, machines{}, err
	}
	stops = append(stops, closeMirror)
	logf("importing images")
	return stop, nodes, nodes.importImages(ctx, layout.Dir())
}

// registries are the directories of the registry configuration of all nodes.
func (m machines) registries() []string {
	if m.second == nil {
		return []string{m.Registries()}
	}
	return []string{m.Registries(), m.second.Registries()}
}

// importImages imports the images of an OCI layout into all nodes.
func (m machines) importImages(ctx context.Context, layout string) error {
	err := m.Import(ctx, layout)
	if m.second != nil {
		err = errors.Join(err, m.second.Import(ctx, layout))
	}
	return err
}

// runAndReport runs the suite on a cluster and writes the report.
func runAndReport(ctx context.Context, o options, running machines, bin, out string, expected []string, earlier suite.Records) error {
	focus, complete := o.focus, false
	selected := earlier.Pending(expected, suite.Record.Failed)
	if focus == "" {
		focus, complete = suite.Exactly(selected), o.skip == ""
	}
	result, err := runSuite(ctx, o, running, focus, bin, out, selected)
	if cause := context.Cause(ctx); cause != nil {
		o = o.interrupted(cause, out)
	}
	if err != nil {
		return err
	}
	results := earlier.Add(result, versionLine(filepath.Join(bin, "berth"), "version"), machine())
	if err := replaceFile(filepath.Join(out, resultsFile), results.Write); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if o.resume {
		broken := result.Broken
		result = results.Result(expected, expected)
		result.Broken = broken
	}
	if err := writeReport(o, result, bin, len(expected)); err != nil {
		return err
	}
	return result.Verdict(complete)
}

// interruptedReport is the file in the output directory for the report of a run that was interrupted.
const interruptedReport = "interrupted.md"

// interrupted returns the options of a run whose suite was interrupted: its partial report must not replace that of a
// complete run.
func (o options) interrupted(cause error, out string) options {
	logf("interrupted (%s): %s is not changed", cause, o.report)
	o.report = filepath.Join(out, interruptedReport)
	return o
}

// kubeletDir is where some specs read a Pod's volumes, whatever the kubelet's own directory is.
const kubeletDir = "/var/lib/kubelet"

// linkKubelet links it to the cluster's own directory, if it is not that, unless it exists already: then those specs fail. The function that
// it returns removes the link.
func linkKubelet(dir string) (func() error, error) {
	if dir == kubeletDir {
		return func() error { return nil }, nil
	}
	if to, err := os.Readlink(kubeletDir); err == nil && to == dir { // left by a run that was killed
		return unlinkKubelet, nil
	}
	if _, err := os.Lstat(kubeletDir); err == nil {
		logf("%s exists already: specs that read it will fail", kubeletDir)
		return func() error { return nil }, nil
	}
	if err := os.Symlink(dir, kubeletDir); err != nil {
		return nil, fmt.Errorf("link the kubelet's directory for the suite: %w", err)
	}
	return unlinkKubelet, nil
}

// unlinkKubelet removes the link if it still exists.
func unlinkKubelet() error {
	if err := os.Remove(kubeletDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the link to the kubelet's directory: %w", err)
	}
	return nil
}

func logf(format string, args ...any) {
	fmt.Printf("%s conformance: %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func (o options) dirs() (bin, out string, err error) {
	if bin, err = filepath.Abs(o.bin); err != nil {
		return "", "", fmt.Errorf("--bin-dir %q: %w", o.bin, err)
	}
	out = o.out
	if out == "" {
		out = filepath.Join(bin, "conformance", "out")
	}
	if out, err = filepath.Abs(out); err != nil {
		return "", "", fmt.Errorf("--out %q: %w", o.out, err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", "", fmt.Errorf("make output directory: %w", err)
	}
	return bin, out, nil
}

// assemble builds the stub images.
func assemble(bin, out string) (oci.Layout, error) {
	sources, err := stubSources(bin)
	if err != nil {
		return oci.Layout{}, err
	}
	images, err := sources.Images()
	if err != nil {
		return oci.Layout{}, err
	}
	dir := filepath.Join(out, "images")
	if err := oci.Write(dir, images); err != nil {
		return oci.Layout{}, err
	}
	logf("assembled %d images", len(images))
	return oci.Open(dir), nil
}

// stubSources are what the stub images are made from.
func stubSources(bin string) (stubimages.Sources, error) {
	own := filepath.Join(bin, "conformance")
	data, err := os.ReadFile(filepath.Join(own, "upstream-images"))
	if err != nil {
		return stubimages.Sources{}, fmt.Errorf("find upstream's images: %w: run build.sh first", err)
	}
	return stubimages.Sources{
		Debian: filepath.Join(own, "debian"), Programs: filepath.Join(own, "programs"),
		Upstream: strings.TrimSpace(string(data)), Pause: filepath.Join(bin, "images", "pause"),
	}, nil
}

// serveMirror starts the registry for Pods that pull always, on an address that all nodes reach, and configures their
// containerds for it. The function that it returns stops it.
func serveMirror(layout oci.Layout, address netip.Addr, registries ...string) (func() error, error) {
	handler, err := mirror.New(layout)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(address, 0).String())
	if err != nil {
		return nil, fmt.Errorf("start mirror: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	stop := func() error {
		closed := server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("mirror: %w", err)
		}
		return closed
	}
	for _, dir := range registries {
		if err := handler.WriteHosts(dir, listener.Addr().String()); err != nil {
			return nil, errors.Join(err, stop())
		}
	}
	return stop, nil
}

// runSuite runs the specs, and stops them when the cluster ends.
func runSuite(
	ctx context.Context, o options, running machines, focus, bin, out string, expected []string,
) (_ suite.Result, err error) {
	kubectl, err := running.Kubectl(out)
	if err != nil {
		return suite.Result{}, err
	}
	log, err := os.Create(filepath.Join(out, "suite.log"))
	if err != nil {
		return suite.Result{}, fmt.Errorf("run suite: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-running.Ended():
			cancel(errors.New("the cluster ended while the suite ran"))
		case <-running.secondEnded():
			cancel(errors.New("the second node ended while the suite ran"))
		case <-ctx.Done():
		}
	}()
	selected := fmt.Sprintf("%d specs", len(expected))
	if o.focus != "" {
		selected = "the specs that match " + o.focus
	}
	logf("running %s of the suite, %d at once; its log is %s", selected, o.parallel, log.Name())
	report, err := suite.Run(ctx, suite.Config{
		Bin: filepath.Join(bin, "conformance"), Kubeconfig: running.Kubeconfig(), Kubectl: kubectl, OutDir: out,
		Focus: focus, Skip: o.skip, OneNode: o.oneNode, Drivers: o.drivers, Parallel: o.parallel, Attempts: o.attempts, Timeout: o.timeout,
		Progress: log, Kill: o.kill,
	})
	if err != nil {
		return suite.Result{}, errors.Join(err, context.Cause(ctx))
	}
	result := suite.Evaluate(report, expected)
	if cause := context.Cause(ctx); cause != nil && result.Broken == "" {
		result.Broken = cause.Error()
	}
	return result, nil
}

func writeReport(o options, result suite.Result, bin string, expected int) error {
	header := suite.Header{
		Command: "make conformance", Suite: versionLine(filepath.Join(bin, "conformance", "e2e.test"), "--version"),
		Subject: versionLine(filepath.Join(bin, "berth"), "version"),
		Machine: machine(), Accumulated: o.resume, Expected: expected, List: filepath.Base(o.expected),
		Notes: []string{"There are no stub images for " + strings.Join(stubimages.Missing(), ", ") + ": specs that use one fail."},
	}
	for _, host := range stubimages.Registries() {
		header.Hide = append(header.Hide, host+"/")
	}
	if o.conformance {
		header.Command = "make conformance-all"
	}
	for name, value := range map[string]string{"FOCUS": o.focus, "SKIP": o.skip, "LIST": o.list} {
		if value != "" {
			header.Command += fmt.Sprintf(" %s='%s'", name, value)
		}
	}
	return publish(result, o.report, header)
}

// publish prints what failed and writes the report.
func publish(result suite.Result, report string, header suite.Header) error {
	printFailures(result)
	return writeReportFile(result, report, header)
}

// printFailures prints which specs failed or did not pass at once.
func printFailures(result suite.Result) {
	for _, spec := range result.Specs {
		if spec.Failed {
			fmt.Printf("FAIL %s\n     %s\n", spec.Name, spec.Reason)
		}
		if spec.Flaked() {
			fmt.Printf("FLAKY %s: passed at attempt %d, before that\n      %s\n", spec.Name, spec.Attempts, spec.Reason)
		}
	}
}

// writeReportFile writes the report and prints its counts.
func writeReportFile(result suite.Result, report string, header suite.Header) error {
	if err := replaceFile(report, func(w io.Writer) error { return result.WriteReport(w, header) }); err != nil {
		return fmt.Errorf("write report %s: %w", report, err)
	}
	failed := 0
	for _, spec := range result.Specs {
		if spec.Failed {
			failed++
		}
	}
	logf("%d specs ran, %d failed, %d of them must pass; %d that must pass did not run; report: %s",
		result.Ran, failed, len(result.Regressed), len(result.Missing), report)
	return nil
}

// replaceFile replaces a file when all of it is written. It is no copy of internal/atomicfile: a report is written piece by
// piece, is readable for all users, and need not survive a power cut; and this module imports none of Berth's code.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	file, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	if err := errors.Join(write(file), file.Close()); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return os.Rename(file.Name(), path)
}

// versionLine is the first line that a program prints about itself.
func versionLine(program string, args ...string) string {
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		return "of unknown version"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.Join(strings.Fields(line), " ")
}

// machine is what of the machine changes results: kernel, cgroups, processors.
func machine() string {
	var name unix.Utsname
	release := "unknown"
	if err := unix.Uname(&name); err == nil {
		release = unix.ByteSliceToString(name.Release[:])
	}
	groups := "cgroup v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		groups = "cgroup v2"
	}
	return fmt.Sprintf("Linux %s, %s, %d processors", release, groups, runtime.NumCPU())
}
