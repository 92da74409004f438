package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// module is the module whose suites run.
const module = "sigs.k8s.io/controller-runtime"

// suites are the packages of the module that use envtest. restmapper_test.go of client/apiutil downloads programs of Kubernetes 1.28 for
// half of its tests, which none of the two judges has.
var suites = []string{
	"builder", "cache", "client", "client/apiutil", "cluster", "controller", "controller/controllerutil", "envtest", "handler",
	"internal/controller", "internal/recorder", "manager", "manager/internal/integration", "metrics/filters", "reconcile", "source", "webhook",
}

// apiOnlySuites run with the API server alone: specs of cache make the same Pods again as soon as they have deleted them, and a whole cluster
// ends these in order first.
var apiOnlySuites = []string{"cache"}

// options are the flags.
type options struct {
	bin, upstream, list, out string
	packages                 []string
	update, apiOnly          bool
	timeout                  time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "envtest: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o options
	var packages string
	flag.StringVar(&o.bin, "bin", "../../bin", "directory of Berth's programs")
	flag.StringVar(&o.upstream, "upstream", "", "run with envtest itself and the etcd, kube-apiserver and kubectl of this directory")
	flag.StringVar(&o.list, "list", "passes.txt", "the specs that have to pass")
	flag.StringVar(&o.out, "out", "", "directory for the test programs and their output (default: one that is removed)")
	flag.StringVar(&packages, "packages", strings.Join(suites, ","), "the suites to run, below pkg/; "+strings.Join(apiOnlySuites, ",")+" only with -api-only or -upstream")
	flag.BoolVar(&o.update, "update", false, "write what passes to -list")
	flag.BoolVar(&o.apiOnly, "api-only", false, "run with the API server alone, as envtest does ($BERTHTEST_API_ONLY): then all specs of the list have to pass")
	flag.DurationVar(&o.timeout, "timeout", 15*time.Minute, "how long one suite may take")
	flag.Parse()
	o.packages = strings.Split(packages, ",")
	for _, name := range o.packages {
		if !slices.Contains(suites, name) {
			return fmt.Errorf("-packages %s: known are %s", name, strings.Join(suites, ", "))
		}
	}
	if o.upstream == "" && !o.apiOnly {
		o.packages = slices.DeleteFunc(o.packages, func(name string) bool { return slices.Contains(apiOnlySuites, name) })
	}
	return o.run(ctx)
}

func (o options) run(ctx context.Context) (err error) {
	if o.out == "" {
		if o.out, err = os.MkdirTemp("", "berth-envtest-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.out)) }()
	}
	for _, dir := range []*string{&o.out, &o.bin, &o.upstream} {
		if *dir == "" {
			continue
		}
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	source, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	if source, err = o.copySource(ctx, source); err != nil {
		return err
	}
	got := results{}
	for _, name := range o.packages {
		began := time.Now()
		one, err := o.suite(ctx, source, name)
		if err != nil {
			return err
		}
		passed, failed := one.count()
		fmt.Printf("%-32s %4d passed, %d not, %.0f s\n", name, passed, failed, time.Since(began).Seconds())
		got.add(one)
	}
	if o.update {
		return got.write(o.list, o.packages)
	}
	return got.compare(o.list, o.packages, o.upstream == "" && !o.apiOnly)
}

// moduleDir returns where the module's source is. It is downloaded if no build has done that yet.
func moduleDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
	var found struct{ Dir, Error string }
	if decodeErr := json.Unmarshal(out, &found); err == nil {
		err = decodeErr
	}
	if err != nil || found.Error != "" {
		return "", fmt.Errorf("find the source of %s: %w: %s", module, err, found.Error)
	}
	return found.Dir, nil
}

// suite builds and runs one suite.
func (o options) suite(ctx context.Context, source, name string) (results, error) {
	program := filepath.Join(o.out, strings.ReplaceAll(name, "/", "-")+".test") // one suite is called as the copy of the source is: source
	args := []string{"test", "-c", "-vet=off", "-trimpath", "-modfile", o.modfile(), "-o", program}
	if out, err := exec.CommandContext(ctx, "go", append(args, module+"/pkg/"+name)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the suite %s: %w:\n%s", name, err, out)
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	report := program + ".json"
	cmd := exec.CommandContext(ctx, program, "-test.v", "-test.timeout", o.timeout.String(), "-ginkgo.json-report", report, "-ginkgo.no-color")
	cmd.Dir = filepath.Join(source, "pkg", name)
	cmd.Env = append(os.Environ(), "BERTH_BIN="+o.bin, "KUBEBUILDER_ASSETS="+o.upstream, "BERTHTEST_API_ONLY="+strconv.FormatBool(o.apiOnly))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("run the suite %s: %w", name, err)
	}
	if err := os.WriteFile(program+".log", out, 0o644); err != nil {
		return nil, err
	}
	got := results{}
	got.addTests(name, bytes.NewReader(out))
	if err := got.addReport(name, report); err != nil {
		return nil, fmt.Errorf("read the report of the suite %s: %w; its output ends with:\n%s", name, err, tail(out))
	}
	return got, nil
}

// tail is the end of an output.
func tail(out []byte) []byte { return out[max(0, len(out)-4096):] }
