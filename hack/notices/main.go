// Command notices collects the licences of all modules that programs are built from.
//
//	go run ./hack/notices -bin bin -notices bin/THIRD_PARTY_NOTICES.txt -sbom bin/sbom.spdx.json
//
// It fails if a module has no licence that it recognises, so that no program is distributed without.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/licensecheck"
	"golang.org/x/mod/module"

	"github.com/berth-dev/berth/internal/sbom"
)

// minCoverage is the part of a file, in percent, that must be a licence's text for the file to be that licence.
const minCoverage = 60

// licenceFile matches the names of files with licences and notices.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|patents|unlicense)([._-].*)?$`)

func main() {
	bin := flag.String("bin", "bin", "directory of the programs")
	notices := flag.String("notices", "", "file to write the licences to")
	document := flag.String("sbom", "", "file to write the software bill of materials to (SPDX, JSON)")
	version := flag.String("version", "", "version of the product")
	flag.Parse()
	if err := run(*bin, *notices, *document, *version); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func run(bin, notices, document, version string) error {
	programs, err := sbom.ReadPrograms(bin)
	if err != nil {
		return err
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("find the module cache: %w", err)
	}
	licences := map[sbom.Module]string{}
	texts := map[string][]string{} // the modules by the text of a file
	var errs []error
	for _, m := range sbom.Modules(programs) {
		files, err := read(strings.TrimSpace(string(cache)), m)
		if err == nil && licenceOf(files) == "" {
			err = errors.New("no licence is recognised in it")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s@%s: %w", m.Path, m.Version, err))
			continue
		}
		licences[m] = licenceOf(files)
		for _, file := range files {
			texts[file.text] = append(texts[file.text], m.Path+"@"+m.Version+" ("+licences[m]+"): "+file.name)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if notices != "" {
		if err := os.WriteFile(notices, []byte(format(texts)), 0o644); err != nil {
			return err
		}
	}
	if document == "" {
		return nil
	}
	data, err := json.MarshalIndent(sbom.New(programs, sbom.Options{Name: "berth", Version: version, Created: created(), Licenses: licences}), "", " ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return os.WriteFile(document, append(data, '\n'), 0o644)
}

// created is the time of the document: SOURCE_DATE_EPOCH, if set, as for every reproducible build.
func created() time.Time {
	if seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		return time.Unix(seconds, 0)
	}
	return time.Now()
}

type file struct{ name, text string }

// read returns the files with licences of a module, the one at its root first.
func read(cache string, m sbom.Module) ([]file, error) {
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return nil, err
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return nil, err
	}
	root := filepath.Join(cache, escaped+"@"+version)
	var files []file
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == "vendor") {
			return filepath.SkipDir
		}
		if !entry.Type().IsRegular() || !licenceFile.MatchString(entry.Name()) || strings.HasSuffix(entry.Name(), ".go") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		files = append(files, file{name, strings.TrimSpace(strings.ReplaceAll(string(data), "\r\n", "\n"))})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read its files (go mod download): %w", err)
	}
	slices.SortStableFunc(files, func(a, b file) int { return strings.Count(a.name, "/") - strings.Count(b.name, "/") })
	return files, nil
}

// licenceOf returns the SPDX expression of the files at the root of a module; empty if none is recognised.
func licenceOf(files []file) string {
	var found []string
	for _, file := range files {
		if strings.Contains(file.name, "/") {
			continue
		}
		coverage := licensecheck.Scan([]byte(file.text))
		if coverage.Percent < minCoverage {
			continue
		}
		for _, match := range coverage.Match {
			if !match.IsURL && !slices.Contains(found, match.ID) {
				found = append(found, match.ID)
			}
		}
	}
	slices.Sort(found)
	return strings.Join(found, " AND ")
}

// format returns each text once, after the modules that it is of.
func format(texts map[string][]string) string {
	type entry struct {
		modules []string
		text    string
	}
	var entries []entry
	for text, modules := range texts {
		slices.Sort(modules)
		entries = append(entries, entry{modules, text})
	}
	slices.SortFunc(entries, func(a, b entry) int { return slices.Compare(a.modules, b.modules) })
	var out strings.Builder
	out.WriteString("Berth's programs contain software of others under the following licences.\n")
	for _, entry := range entries {
		fmt.Fprintf(&out, "\n%s\n\n%s\n\n%s\n", strings.Repeat("=", 100), strings.Join(entry.modules, "\n"), entry.text)
	}
	return out.String()
}
