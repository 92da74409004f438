package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/page"
	"github.com/berth-dev/berth/page/waterfall"
	"github.com/berth-dev/berth/version"
)

// pictures are the files that `berth explain` draws into; "-" is standard output, and empty names draw nothing.
type pictures struct{ html, svg string }

// addFlags registers the flags.
func (p *pictures) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.html, "html", "", "write a page that stands alone to this `file`, for a bug report or as an artifact of CI; - is standard output")
	f.StringVar(&p.svg, "svg", "", "draw the stages of the object into this `file` as SVG; - is standard output")
}

// check checks the flags against the others.
func (p *pictures) check(f *explainFlags, all bool) error {
	switch {
	case p.html == "" && p.svg == "":
		return nil
	case f.output != "":
		return errors.New("--output excludes --html and --svg: choose one format")
	case f.watch:
		return errors.New("--watch excludes --html and --svg: `berth page` shows changes in a browser")
	case all && p.svg != "":
		return errors.New("--svg draws one object: with --all use --html")
	case p.html == "-" && p.svg == "-":
		return errors.New("--html - and --svg - exclude each other: there is one standard output")
	}
	return nil
}

// wanted reports whether the explanations are drawn.
func (p *pictures) wanted() bool { return p.html != "" || p.svg != "" }

// write draws the explanations: one object, or the list of all that is stuck.
func (p *pictures) write(cmd *cobra.Command, list bool, explanations []*explain.Explanation, unseen []string) error {
	now := time.Now()
	if p.html != "" {
		file := page.File{
			Explanations: explanations, List: list, Unseen: unseen, Now: now,
			Made: fmt.Sprintf("Made by berth %s at %s.", version.Berth, now.Format(time.RFC1123)),
		}
		if err := writeOutput(cmd.OutOrStdout(), "--html", p.html, file.Write); err != nil {
			return err
		}
	}
	if p.svg == "" {
		return nil
	}
	chart := waterfall.Of(explanations[0])
	return writeOutput(cmd.OutOrStdout(), "--svg", p.svg, func(w io.Writer) error {
		return chart.SVG(w, waterfall.Size{ID: "w", Width: 960, Standalone: true})
	})
}

// writeOutput writes to the file, or to out if its name is "-".
func writeOutput(out io.Writer, flag, name string, write func(w io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	if name == "-" {
		_, err := out.Write(b.Bytes())
		return err
	}
	if err := os.WriteFile(name, b.Bytes(), 0o666); err != nil { //nolint:gosec // as any output of a program: the umask counts
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}
