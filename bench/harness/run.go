package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ChildFlag is the first argument of a process that takes one sample; Child handles it.
const ChildFlag = "-sample"

const (
	defaultTimeout = 5 * time.Minute
	minTimeout     = time.Minute // of a sample when the budget is used up
)

var errBudgetExceeded = errors.New("it exceeded its time")

// Options say how to run.
type Options struct {
	// Paths is where to run; Site.Dir is where each benchmark gets a directory of its own.
	Paths Paths
	// Rounds is how many samples each variant of a case gives.
	Rounds int
	// Cases limits the run to cases whose name contains the text.
	Cases string
	// Variants limits the run to variants of these names; empty means all.
	Variants []string
	// Out receives a line for each sample.
	Out io.Writer
	// Budget bounds the run: each case gets one round, and further ones only if there is time for a round as long as its
	// last. No sample outlasts the budget. 0 means no bound.
	Budget time.Duration
	// Profile is a directory for a CPU and a heap profile of each variant; empty means none.
	Profile string
}

// Run measures a benchmark. It omits a variant that fails and stores the reason; it returns an error only if nothing can
// be measured, or if ctx ended, with the data measured until then.
func Run(ctx context.Context, b Benchmark, options Options) (*Data, error) {
	data := &Data{Name: b.Name, Title: b.Title, About: b.About, Axis: b.Axis,
		Machine: ThisMachine(), Versions: Versions(ctx)}
	if b.Missing != nil {
		if reason := b.Missing(options.Paths); reason != "" {
			data.NotMeasured, data.Taken = reason, time.Now().UTC()
			fmt.Fprintf(options.Out, "%s: not measured: %s\n", b.Name, reason)
			return data, nil
		}
	}
	dir, err := os.MkdirTemp(options.Paths.Dir, b.Name+"-")
	if err != nil {
		return nil, fmt.Errorf("run benchmark %q: %w", b.Name, err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is in the temporary directory
	options.Paths.Dir = dir
	began := time.Now()
	place := &Environment{}
	if b.Setup != nil {
		if place, err = b.Setup(ctx, options.Paths); err != nil {
			return nil, fmt.Errorf("set up benchmark %q: %w", b.Name, err)
		}
		maps.Copy(data.Versions, place.Versions)
	}
	data.Cases = interleave(ctx, b, options, place.Env, began)
	data.Taken = time.Now().UTC()
	err = ctx.Err()
	if place.Stop != nil {
		err = errors.Join(err, place.Stop())
	}
	if err != nil {
		return data, fmt.Errorf("run benchmark %q: %w", b.Name, err)
	}
	return data, nil
}

// Chosen returns the names of the variants of a benchmark that the options choose, those of each case one after the other.
func (o Options) Chosen(b Benchmark) []string {
	var names []string
	for i := range b.Cases {
		if strings.Contains(b.Cases[i].Name, o.Cases) {
			names = append(names, o.variants(&b.Cases[i])...)
		}
	}
	return names
}

// variants returns the names of the variants of a case that the options choose.
func (o Options) variants(c *Case) []string {
	var names []string
	for _, v := range c.Variants {
		if len(o.Variants) == 0 || slices.Contains(o.Variants, v.Name) {
			names = append(names, v.Name)
		}
	}
	return names
}

// interleave runs a round of each case, then the next, so that a busy machine affects all of them alike.
func interleave(ctx context.Context, b Benchmark, options Options, env map[string]string, began time.Time) []CaseData {
	var runners []*runner
	for i := range b.Cases {
		if strings.Contains(b.Cases[i].Name, options.Cases) {
			runners = append(runners, newRunner(b.Name, &b.Cases[i], options, env, began))
		}
	}
	for round, more := 0, true; more && ctx.Err() == nil; round++ {
		more = false
		for _, r := range runners {
			if r.hasTime(round) {
				r.run(ctx, round)
				more = true
			}
		}
	}
	cases := make([]CaseData, 0, len(runners))
	for _, r := range runners {
		cases = append(cases, r.result)
	}
	return cases
}

// runner takes the samples of one case.
type runner struct {
	options   Options
	env       map[string]string
	benchmark string
	c         *Case
	began     time.Time // of the benchmark
	rounds    int
	took      time.Duration // the last round
	result    CaseData
}

func newRunner(benchmark string, c *Case, options Options, env map[string]string, began time.Time) *runner {
	r := &runner{options: options, env: env, benchmark: benchmark, c: c, began: began, rounds: options.Rounds}
	if c.Rounds > 0 {
		r.rounds = min(r.rounds, c.Rounds)
	}
	r.result = CaseData{Name: c.Name, Scale: c.Scale, Metrics: c.Metrics, Targets: c.Targets, Failed: map[string]string{}}
	r.result.Variants = options.variants(c)
	return r
}

// hasTime reports whether another round is to be run. Once false, it stays false.
func (r *runner) hasTime(round int) bool {
	if round >= r.rounds {
		return false
	}
	if round == 0 || r.options.Budget == 0 || time.Since(r.began)+r.took <= r.options.Budget {
		return true
	}
	fmt.Fprintf(r.options.Out, "%s / %s: %d of %d rounds, no time for more\n", r.benchmark, r.c.Name, round, r.rounds)
	r.rounds = round
	return false
}

// timeout bounds a sample that begins now.
func (r *runner) timeout() time.Duration {
	timeout := r.c.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	if r.options.Budget == 0 {
		return timeout
	}
	return min(timeout, max(minTimeout, r.options.Budget-time.Since(r.began)))
}

// run runs one round. A variant that failed is not run again.
func (r *runner) run(ctx context.Context, round int) {
	began := time.Now()
	for turn := range r.result.Variants {
		variant := r.result.Variants[(turn+round)%len(r.result.Variants)]
		if _, failed := r.result.Failed[variant]; failed || ctx.Err() != nil {
			continue
		}
		sample, err := r.sample(ctx, variant, round)
		if err != nil && ctx.Err() != nil {
			return // the run is stopped: that is no failure of the variant
		}
		if err != nil {
			r.result.Failed[variant] = err.Error()
			fmt.Fprintf(r.options.Out, "%s / %s / %s: %v\n", r.benchmark, r.c.Name, variant, err)
			continue
		}
		r.result.Samples = append(r.result.Samples, *sample)
		r.print(sample)
	}
	r.took = time.Since(began)
}

func (r *runner) print(sample *SampleData) {
	line := fmt.Sprintf("%s / %s / %s:", r.benchmark, r.c.Name, sample.Variant)
	for _, m := range r.c.Metrics {
		if value, ok := sample.Values[m.Name]; ok {
			line += fmt.Sprintf(" %s %.4g %s,", m.Name, value, m.Unit)
		}
	}
	fmt.Fprintf(r.options.Out, "%s load %.1f\n", line, sample.Load)
}

// cleanupTime is how long a sample that is stopped may take to remove its Pods, mounts and links. A sample that is killed
// leaves them on the machine.
const cleanupTime = 3 * time.Minute

// sample takes one sample in a process of its own.
func (r *runner) sample(ctx context.Context, variant string, round int) (*SampleData, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout(), errBudgetExceeded)
	defer cancel()
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	answer := filepath.Join(r.options.Paths.Dir, "sample.json")
	cmd := exec.CommandContext(ctx, program, ChildFlag, r.benchmark, r.c.Name, variant, strconv.Itoa(round), answer)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = cleanupTime
	// It ends with this process, or rather with the thread that starts it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Env = append(os.Environ(), "BERTH_BENCH_BIN="+r.options.Paths.Bin, "BERTH_BENCH_DIR="+r.options.Paths.Dir,
		"BERTH_BENCH_PROFILE="+r.profile(variant))
	for key, value := range r.env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	var output tail
	cmd.Stdout, cmd.Stderr = &output, &output
	load := LoadAverage()
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("sample: %w: %s", err, output.last())
	}
	text, err := os.ReadFile(answer)
	if err != nil {
		return nil, fmt.Errorf("sample: %w", err)
	}
	result := &SampleData{}
	if err := json.Unmarshal(text, result); err != nil {
		return nil, fmt.Errorf("sample: %w", err)
	}
	result.Load = load
	return result, os.Remove(answer)
}

func (r *runner) profile(variant string) string {
	if r.options.Profile == "" {
		return ""
	}
	plain := strings.NewReplacer("/", "-", " ", "-", ",", "")
	return filepath.Join(r.options.Profile, plain.Replace(r.benchmark+"-"+r.c.Name+"-"+variant))
}

// tail keeps the end of what is written to it.
type tail struct{ text []byte }

const tailSize = 4096

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if len(t.text) > tailSize {
		t.text = append([]byte(nil), t.text[len(t.text)-tailSize:]...)
	}
	return len(p), nil
}

func (t *tail) last() string {
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}
