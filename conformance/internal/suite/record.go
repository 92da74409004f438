package suite

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// State is how a recorded spec ended.
type State string

// The states of a recorded spec. One that the suite itself skipped says why in its reason.
const (
	StatePassed  State = "passed"
	StateFailed  State = "failed"
	StateSkipped State = "skipped"
)

// Record is the latest result of one spec with one kubelet.
type Record struct {
	// Name, Area, Reason and Attempts are those of [Spec].
	Name     string `json:"name"`
	State    State  `json:"state"`
	Area     string `json:"area"`
	Reason   string `json:"reason,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
	// Seconds is how long the spec ran.
	Seconds float64 `json:"seconds"`
	// Date, Subject and Machine say when it ran, with which version of which kubelet, and on what kind of machine.
	Date    string `json:"date"`
	Subject string `json:"subject"`
	Machine string `json:"machine"`
}

// Failed reports whether the spec failed.
func (r Record) Failed() bool { return r.State == StateFailed }

// Records are the results of several runs, each spec once and sorted by name. A file of records has one JSON object a line.
type Records []Record

// ReadRecords reads a file of records. A file that does not exist has none.
func ReadRecords(path string) (Records, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read results of earlier runs: %w", err)
	}
	defer file.Close()
	var records Records
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		var record Record
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			return nil, fmt.Errorf("read results of earlier runs: %s, line %d: %w", path, number, err)
		}
		records = append(records, record)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read results of earlier runs: %s: %w", path, err)
	}
	return records, nil
}

// Write writes a file of records.
func (r Records) Write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	for _, record := range r {
		if err := encoder.Encode(record); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
	}
	return nil
}

// Add returns the records with those of a run, which replace earlier ones of the same specs. Specs that the end of the run
// interrupted have no result.
func (r Records) Add(result Result, subject, machine string) Records {
	added := make(map[string]bool)
	all := Records{}
	for _, spec := range result.Specs {
		record := Record{
			Name: spec.Name, State: StateSkipped, Area: spec.Area, Reason: spec.Reason, Attempts: spec.Attempts,
			Seconds: spec.Took.Round(time.Second / 10).Seconds(), Date: result.Began.UTC().Format(time.DateOnly),
			Subject: subject, Machine: machine,
		}
		switch {
		case spec.Interrupted:
			continue
		case spec.Passed:
			record.State = StatePassed
		case spec.Failed:
			record.State = StateFailed
		}
		added[spec.Name] = true
		all = append(all, record)
	}
	for _, record := range r {
		if !added[record.Name] {
			all = append(all, record)
		}
	}
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Pending returns those of the names that have no record, or whose record is to be replaced because again returns true for it:
// those without one first, then those with the oldest, so that runs with a limit come to all of them.
func (r Records) Pending(names []string, again func(Record) bool) []string {
	done, dates := make(map[string]bool), make(map[string]string)
	for _, record := range r {
		done[record.Name], dates[record.Name] = !again(record), record.Date
	}
	pending := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return done[name] })
	slices.SortStableFunc(pending, func(a, b string) int { return cmp.Compare(dates[a], dates[b]) })
	return pending
}

// Subjects counts the records of each subject and machine, as "subject, machine".
func (r Records) Subjects() map[string]int {
	counts := make(map[string]int)
	for _, record := range r {
		counts[record.Subject+", "+record.Machine]++
	}
	return counts
}

// Result returns what all recorded runs give together. known are the names that the suite has. Took is the sum of what the
// specs took, which ran at the same time in part.
func (r Records) Result(known, expected []string) Result {
	var result Result
	specs := make(map[string]*Spec)
	for _, name := range known {
		specs[name] = &Spec{Name: name}
	}
	for _, record := range r {
		spec := Spec{
			Name: record.Name, Area: record.Area, Passed: record.State == StatePassed, Failed: record.State == StateFailed,
			Reason: record.Reason, Took: time.Duration(record.Seconds * float64(time.Second)), Attempts: record.Attempts,
		}
		specs[spec.Name] = &spec
		result.Specs = append(result.Specs, spec)
		result.Took += spec.Took
		if spec.Passed || spec.Failed {
			result.Ran++
		}
		if began, err := time.Parse(time.DateOnly, record.Date); err == nil && began.After(result.Began) {
			result.Began = began
		}
	}
	result.compare(specs, expected)
	return result
}
