package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-dev/berth/conformance/internal/suite"
)

// subject is the kubelet's name and version.
func (o nodeOptions) subject(bin string) string {
	subject := o.kubeletVersion(bin)
	if o.runtime != defaultNodeRuntime {
		subject += " with the runtime " + o.runtime
	}
	return subject
}

func (o nodeOptions) kubeletVersion(bin string) string {
	if o.kubelet == kubeletUpstream {
		return "upstream's kubelet " + strings.TrimPrefix(versionLine(filepath.Join(bin, "conformance", "kubelet"), "--version"), "Kubernetes ")
	}
	return versionLine(filepath.Join(bin, "berth"), "version")
}

// writeReport writes the report of all results with this kubelet.
func (o nodeOptions) writeReport(result suite.Result, records suite.Records, bin string, expected int) error {
	command := "make conformance-node KUBELET=" + o.kubelet
	if o.runtime != defaultNodeRuntime {
		command += " RUNTIME=" + o.runtime
	}
	if o.native {
		command += " NATIVE=1"
	}
	header := suite.Header{
		Title: "The node suite", Command: command, Accumulated: true,
		Suite: versionLine("cat", filepath.Join(bin, "conformance", "upstream-version")), Expected: expected, List: filepath.Base(o.expected),
	}
	subjects := records.Subjects()
	names := slices.Sorted(maps.Keys(subjects))
	header.Subject = strings.Join(names, "; ")
	for _, name := range names {
		if len(names) > 1 {
			header.Notes = append(header.Notes, fmt.Sprintf("%d of the results are of %s.", subjects[name], name))
		}
	}
	return writeReportFile(result, o.report, header)
}

// offByDefault is the label of specs that turn on a feature which Kubernetes has off. Berth has no such features, so what passes with
// upstream's kubelet there is not expected of it.
const offByDefault = "[Feature:OffByDefault]"

// addPassed adds the names of the specs that passed to a list, which is kept sorted, and returns all of it. A comment at its
// beginning stays.
func addPassed(path string, records suite.Records) ([]string, error) {
	names, err := suite.ReadList(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, suite.ErrEmpty) {
		return nil, err
	}
	for _, record := range records {
		if record.State == suite.StatePassed && !strings.Contains(record.Name, offByDefault) {
			names = append(names, record.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	slices.Sort(names)
	names = slices.Compact(names)
	comment, err := leadingComment(path)
	if err != nil {
		return nil, fmt.Errorf("add to list of specs: %w", err)
	}
	err = replaceFile(path, func(w io.Writer) error {
		_, err := io.WriteString(w, comment+strings.Join(names, "\n")+"\n")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("add to list of specs: %w", err)
	}
	return names, nil
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
