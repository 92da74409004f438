package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// Config says what to run and against what.
type Config struct {
	// Bin holds ginkgo and e2e.test.
	Bin string
	// Kubeconfig and Kubectl are the cluster's administrator and a kubectl program.
	Kubeconfig, Kubectl string
	// OutDir takes the reports and the log.
	OutDir string
	// Focus and Skip are regular expressions over spec names, ginkgo's flags.
	Focus, Skip string
	// OneNode says that the cluster has one node; else it has two.
	OneNode bool
	// Drivers are files that define storage drivers: the suite has [External.Storage] specs for each.
	Drivers []string
	// Parallel is how many specs run at once.
	Parallel int
	// Attempts is how often a spec may be tried until it passes.
	Attempts int
	// Timeout ends the whole run.
	Timeout time.Duration
	// Progress takes the suite's output.
	Progress io.Writer
	// Kill, if not nil, is closed when a suite that was interrupted is to be killed.
	Kill <-chan struct{}
}

// cleanupTime is how long an interrupted suite may take to delete its namespaces and write its report.
const cleanupTime = 2 * time.Minute

// ReportFile is the name of ginkgo's own report in the output directory.
const ReportFile = "report.json"

// Exactly is the focus that selects these specs and no others.
func Exactly(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	// ginkgo puts the suite's name before the spec's, so only the end can be pinned.
	return "(?:" + strings.Join(quoted, "|") + ")$"
}

// Run runs the suite and returns ginkgo's report. Specs that fail are no error; a run without a report is one.
func Run(ctx context.Context, config Config) (types.Report, error) {
	report := filepath.Join(config.OutDir, ReportFile)
	if err := os.Remove(report); err != nil && !errors.Is(err, os.ErrNotExist) {
		return types.Report{}, fmt.Errorf("run suite: %w", err)
	}
	nodes := 2
	if config.OneNode {
		nodes = 1
	}
	args := append(config.ginkgoFlags(), filepath.Join(config.Bin, "e2e.test"), "--", "--provider=skeleton", "--kubeconfig="+config.Kubeconfig,
		"--kubectl-path="+config.Kubectl, "--disable-log-dump", fmt.Sprintf("--num-nodes=%d", nodes), "--allowed-not-ready-nodes=-1")
	for _, driver := range config.Drivers {
		// Files that it names are beside it.
		args = append(args, "--storage.testdriver="+driver, "--repo-root="+filepath.Dir(driver))
	}
	// All end with the first process of a PID namespace, so nothing stays of a suite whose runner was killed.
	args = append([]string{"--pid", "--fork", "--kill-child", "--", filepath.Join(config.Bin, "ginkgo")}, args...)
	cmd := exec.CommandContext(ctx, "unshare", args...)
	// ginkgo leaves it to the terminal to interrupt its test processes, so all of them are a group of their own, and
	// what is left of the group when ginkgo has ended or was killed is killed. The kernel kills it if this program is killed:
	// the signal is that of the thread's end, so main locks its thread.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = cleanupTime
	cmd.Stdout, cmd.Stderr = config.Progress, config.Progress
	runErr := cmd.Start()
	if runErr == nil {
		ended := make(chan struct{})
		var killing sync.WaitGroup
		killing.Go(func() {
			select {
			case <-config.Kill:
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			case <-ended:
			}
		})
		runErr = cmd.Wait()
		close(ended)
		killing.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // as a rule there is nothing left
	}
	result, err := ReadReport(report)
	if err != nil {
		return types.Report{}, errors.Join(fmt.Errorf("run suite: %w", err), runErr)
	}
	return result, nil
}

// ginkgoFlags are the flags of ginkgo's own program.
func (c Config) ginkgoFlags() []string {
	flags := []string{
		"--procs=" + strconv.Itoa(c.Parallel), "--flake-attempts=" + strconv.Itoa(c.Attempts), "--timeout=" + c.Timeout.String(),
		"--no-color", "--silence-skips", "--output-dir=" + c.OutDir, "--json-report=" + ReportFile, "--poll-progress-after=10m",
	}
	if c.Focus != "" {
		flags = append(flags, "--focus="+c.Focus)
	}
	if c.Skip != "" {
		flags = append(flags, "--skip="+c.Skip)
	}
	return flags
}

// NodeCommand is the command line of the node suite, with ginkgo in the directory config.Bin. It runs in the machine that is
// the node: all paths are there. e2e_node.test and the kubelet are in dir, to which the suite writes; kubeletConfig is the
// file that it starts from, and start bounds the start of each of its servers. more are further flags of the suite.
func NodeCommand(config Config, dir, kubeletConfig string, start time.Duration, more ...string) []string {
	command := append([]string{filepath.Join(config.Bin, "ginkgo")}, config.ginkgoFlags()...)
	command = append(command, filepath.Join(dir, "e2e_node.test"), "--", "--k8s-bin-dir="+dir, "--report-dir="+config.OutDir,
		"--kubelet-config-file="+kubeletConfig, "--prepull-images=false", "--server-start-timeout="+start.String(),
		"--node-name="+NodeName)
	return append(command, more...)
}

// List returns all specs that a suite's program has, and those of them that focus and skip select, by ginkgo's flags of these
// names. It runs none. The program runs in dir, to which it may write.
func List(ctx context.Context, program, dir, focus, skip string) (known, selected []string, err error) {
	report := filepath.Join(dir, "list.json")
	args := []string{"--ginkgo.dry-run", "--ginkgo.silence-skips", "--ginkgo.no-color", "--ginkgo.json-report=" + report}
	if focus != "" {
		args = append(args, "--ginkgo.focus="+focus)
	}
	if skip != "" {
		args = append(args, "--ginkgo.skip="+skip)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("list specs: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("list specs: %s: %w: %s", program, err, out)
	}
	all, err := ReadReport(report)
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range all.SpecReports {
		if entry.LeafNodeType != types.NodeTypeIt {
			continue
		}
		known = append(known, entry.FullText())
		if entry.State.Is(types.SpecStatePassed) {
			selected = append(selected, entry.FullText())
		}
	}
	return known, selected, nil
}

// NodeName is the name of the node suite's node.
const NodeName = "node"

// ReadReport reads ginkgo's own report.
func ReadReport(path string) (types.Report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return types.Report{}, fmt.Errorf("read the suite's report: %w", err)
	}
	var reports []types.Report
	if err := json.Unmarshal(data, &reports); err != nil {
		return types.Report{}, fmt.Errorf("read the suite's report %q: %w", path, err)
	}
	if len(reports) != 1 {
		return types.Report{}, fmt.Errorf("read the suite's report %q: %d suites in it, not one", path, len(reports))
	}
	return reports[0], nil
}

// ErrEmpty is the error of a list of specs without a name.
var ErrEmpty = errors.New("it names none")

// ReadList reads a list of spec names: one a line, empty lines and lines with # left out.
func ReadList(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read list of specs: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("read list of specs %q: %w", path, ErrEmpty)
	}
	return names, nil
}
