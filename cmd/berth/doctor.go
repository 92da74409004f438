package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/up"
)

// severity is how bad a finding of the doctor is.
type severity string

const (
	severityOK      severity = "ok"      // as it should be
	severityWarning severity = "lacking" // Berth lives with it, and says what is worse for it
	severityError   severity = "broken"  // `berth up` fails or a dead cluster is in the way
)

// diagnosis is one thing that the doctor looked at.
type diagnosis struct {
	// Name is what was looked at, in a word or two.
	Name     string   `json:"name"`
	Severity severity `json:"severity"`
	// Found is what there is, in one sentence.
	Found string `json:"found"`
	// Remedy is what a person can do; empty if nothing needs doing.
	Remedy string `json:"mend,omitempty"`

	// confirmation is the question before fix, which does it; fix is nil if only a person can.
	confirmation string
	fix          func(context.Context) error
}

// report is the JSON of `berth doctor`.
type report struct {
	typeMeta
	Machine   []diagnosis `json:"machine"`
	Leftovers []diagnosis `json:"leftovers"`
}

// newReport is one without leftovers.
func newReport(machine []diagnosis) report {
	return report{typeMeta{"doctor.berth.dev/v1alpha1", "Diagnosis"}, machine, []diagnosis{}}
}

type doctorFlags struct {
	output   string
	fix, yes bool
}

func newDoctor() *cobra.Command {
	var flags doctorFlags
	cmd := &cobra.Command{
		Use: "doctor", Short: "Say what this machine lacks, what dead clusters left over, and how to mend it", Args: noArgs,
		Long: "Looks at the machine (rights, cgroups, file systems, network tools, limits, programs) and for what clusters that were\n" +
			"killed left behind (mounts, shims, loop devices, bridges, firewall rules, cgroups, directories below /run/berth).\n" +
			"Nothing is changed without --fix, which asks before each step. Clusters that run are left alone, and so are data\n" +
			"directories.\n\n" +
			"Exit codes: 0 nothing is broken, 1 something is, 2 wrong usage.",
		Example: "  berth doctor\n  berth doctor -o json\n  sudo berth doctor --fix",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(flags.output); err != nil {
				return err
			}
			if flags.yes && !flags.fix {
				return usageError{errors.New("--yes goes with --fix")}
			}
			return flags.run(cmd)
		},
	}
	cmd.Flags().StringVarP(&flags.output, "output", "o", "", "output format: json or yaml")
	cmd.Flags().BoolVar(&flags.fix, "fix", false, "mend what can be mended, asking before each step")
	cmd.Flags().BoolVar(&flags.yes, "yes", false, "with --fix: do not ask")
	return cmd
}

func (f doctorFlags) run(cmd *cobra.Command) error {
	layout, err := layoutOf(cmd)
	if errors.Is(err, fs.ErrPermission) { // it has much to say to those who are not root, too
		layout, err = layoutWithoutState(cmd)
	}
	if err != nil {
		return err
	}
	r := newReport(checkMachine(layout))
	dead, unseen := up.FindLeftovers(cmd.Context())
	if unseen != nil { // what there is to tell comes first
		unseen = fmt.Errorf("look for leftovers: %w", unseen)
	}
	for _, remains := range dead {
		r.Leftovers = append(r.Leftovers, leftoverDiagnosis(remains))
	}
	if f.output != "" {
		if err := printAs(cmd, f.output, r); err != nil {
			return err
		}
	} else if err := printReport(cmd.OutOrStdout(), r); err != nil {
		return err
	}
	left, err := f.applyFixes(cmd, r)
	if err == nil && unseen == nil && left > 0 {
		return exitCode(exitError)
	}
	return errors.Join(err, unseen)
}

// applyFixes fixes what the person wants to be fixed, and counts what stays broken.
func (f doctorFlags) applyFixes(cmd *cobra.Command, r report) (left int, err error) {
	for _, d := range append(r.Machine, r.Leftovers...) {
		if d.Severity != severityError {
			continue
		}
		mended, err := f.applyFix(cmd, d)
		if err != nil {
			return left, err
		}
		if !mended {
			left++
		}
	}
	return left, nil
}

// applyFix fixes one thing if that was asked for and the person agrees.
func (f doctorFlags) applyFix(cmd *cobra.Command, d diagnosis) (bool, error) {
	if !f.fix || d.fix == nil {
		return false, nil
	}
	if !f.yes {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n%s [y/N] ", d.Name, d.Found, d.confirmation)
		explanation, err := bufio.NewReader(oneByte{cmd.InOrStdin()}).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read the answer: %w", err)
		}
		if explanation = strings.ToLower(strings.TrimSpace(explanation)); explanation != "y" && explanation != "yes" {
			return false, nil
		}
	}
	if err := d.fix(cmd.Context()); err != nil {
		return false, fmt.Errorf("mend %s: %w", d.Name, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "mended: %s\n", d.Name)
	return true, nil
}

// oneByte reads no further than it must, so that the next question gets the next answer of a pipe.
type oneByte struct{ io.Reader }

func (r oneByte) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(1, len(p))]) }

func printReport(w io.Writer, r report) error {
	color := map[severity]string{severityOK: "\x1b[32m", severityWarning: "\x1b[33m", severityError: "\x1b[31m"}
	colored := style().Color
	var b strings.Builder
	list := func(title string, diagnoses []diagnosis) {
		fmt.Fprintf(&b, "%s\n", title)
		for _, d := range diagnoses {
			mark := fmt.Sprintf("%-7s", d.Severity)
			if colored {
				mark = color[d.Severity] + mark + "\x1b[0m"
			}
			fmt.Fprintf(&b, "  %s  %-20s  %s\n", mark, d.Name, d.Found)
			if d.Remedy != "" {
				fmt.Fprintf(&b, "           %-20s  -> %s\n", "", d.Remedy)
			}
		}
	}
	list("This machine", r.Machine)
	if len(r.Leftovers) > 0 {
		list("\nLeft over of clusters that are dead", r.Leftovers)
	} else {
		b.WriteString("\nNothing is left over of dead clusters.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
