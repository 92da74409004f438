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

// severity is how serious a diagnosis is.
type severity string

const (
	severityOK      severity = "ok"
	severityWarning severity = "warning" // Berth works without it, with the restriction that Found names
	severityError   severity = "error"   // `berth up` fails, or a dead cluster occupies resources
)

// diagnosis is the result of one check.
type diagnosis struct {
	// Name is the subject of the check, in a word or two.
	Name     string   `json:"name"`
	Severity severity `json:"severity"`
	// Found is the finding, in one sentence.
	Found string `json:"found"`
	// Remedy says what to do about it; empty if nothing needs to be done.
	Remedy string `json:"remedy,omitempty"`

	// confirmation is the question that is asked before fix runs; fix is nil if berth cannot fix it.
	confirmation string
	fix          func(context.Context) error
}

// report is the JSON of `berth doctor`.
type report struct {
	typeMeta
	Machine   []diagnosis `json:"machine"`
	Leftovers []diagnosis `json:"leftovers"`
}

// newReport returns a report without leftovers.
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
		Use: "doctor", Short: "Check this machine, find leftovers of dead clusters, and fix what can be fixed", Args: noArgs,
		Long: "Checks the machine (privileges, cgroups, file systems, network tools, limits, programs) and finds leftovers of clusters\n" +
			"that were killed (mounts, shims, loop devices, bridges, firewall rules, cgroups, directories below /run/berth).\n" +
			"Nothing is changed without --fix, which asks before each step. Running clusters and data directories are never\n" +
			"touched.\n\n" +
			"Exit codes: 0 no errors found, 1 errors found, 2 wrong usage.",
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
	cmd.Flags().BoolVar(&flags.fix, "fix", false, "fix what can be fixed, asking before each step")
	cmd.Flags().BoolVar(&flags.yes, "yes", false, "with --fix: do not ask before each step")
	return cmd
}

func (f doctorFlags) run(cmd *cobra.Command) error {
	layout, err := layoutOf(cmd)
	if errors.Is(err, fs.ErrPermission) { // most checks work without root
		layout, err = layoutWithoutState(cmd)
	}
	if err != nil {
		return err
	}
	r := newReport(checkMachine(cmd.Context(), layout))
	dead, unseen := up.FindLeftovers(cmd.Context())
	if unseen != nil { // the report is printed first
		unseen = fmt.Errorf("find leftovers: %w", unseen)
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

// applyFixes applies the fixes that the user agrees to, and counts the errors that remain.
func (f doctorFlags) applyFixes(cmd *cobra.Command, r report) (left int, err error) {
	for _, d := range append(r.Machine, r.Leftovers...) {
		if d.Severity != severityError {
			continue
		}
		fixed, err := f.applyFix(cmd, d)
		if err != nil {
			return left, err
		}
		if !fixed {
			left++
		}
	}
	return left, nil
}

// applyFix applies the fix of one diagnosis if --fix is given and the user agrees.
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
		return false, fmt.Errorf("fix %s: %w", d.Name, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "fixed: %s\n", d.Name)
	return true, nil
}

// oneByte reads one byte at a time, so that the next question reads the next line of a pipe.
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
		list("\nLeftovers of dead clusters", r.Leftovers)
	} else {
		b.WriteString("\nNo leftovers of dead clusters.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
