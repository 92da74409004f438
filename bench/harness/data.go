package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Data is what a benchmark measured, as stored beside the report.
type Data struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	About string `json:"about"`
	Axis  string `json:"axis,omitempty"`
	// NotMeasured says why there are no cases.
	NotMeasured string `json:"notMeasured,omitempty"`
	// Taken is when the run ended.
	Taken   time.Time `json:"taken"`
	Machine Machine   `json:"machine"`
	// Versions names what was measured.
	Versions map[string]string `json:"versions"`
	Cases    []CaseData        `json:"cases,omitempty"`
}

// CaseData are the samples of a case.
type CaseData struct {
	Name     string       `json:"name"`
	Scale    float64      `json:"scale,omitempty"`
	Metrics  []Metric     `json:"metrics"`
	Targets  []Target     `json:"targets,omitempty"`
	Variants []string     `json:"variants"`
	Samples  []SampleData `json:"samples"`
	// Failed are the variants that yielded no sample, with the reason.
	Failed map[string]string `json:"failed,omitempty"`
}

// SampleData is one sample.
type SampleData struct {
	Variant string `json:"variant"`
	Round   int    `json:"round"`
	// Load is the load average of the last minute when the sample began.
	Load   float64              `json:"load"`
	Values map[string]float64   `json:"values"`
	Series map[string][]float64 `json:"series,omitempty"`
}

// Values are the values of a metric that a variant yielded, by round.
func (c *CaseData) Values(variant, metric string) []float64 {
	var values []float64
	for _, s := range c.Samples {
		if value, ok := s.Values[metric]; ok && s.Variant == variant {
			values = append(values, value)
		}
	}
	return values
}

// Series are all single values behind a metric of a variant, of all rounds.
func (c *CaseData) Series(variant, metric string) []float64 {
	var values []float64
	for _, s := range c.Samples {
		if s.Variant == variant {
			values = append(values, s.Series[metric]...)
		}
	}
	return values
}

// Complete says whether each variant of each case gave a sample, or failed to.
func (d *Data) Complete() bool {
	for i := range d.Cases {
		c := &d.Cases[i]
		for _, variant := range c.Variants {
			_, failed := c.Failed[variant]
			measured := slices.ContainsFunc(c.Samples, func(s SampleData) bool { return s.Variant == variant })
			if !failed && !measured {
				return false
			}
		}
	}
	return true
}

// Load is the lowest and the highest load average at which samples were taken.
func (d *Data) Load() (low, high float64) {
	first := true
	for i := range d.Cases {
		for _, s := range d.Cases[i].Samples {
			if first || s.Load < low {
				low = s.Load
			}
			if first || s.Load > high {
				high = s.Load
			}
			first = false
		}
	}
	return low, high
}

// Save writes the data to NAME.json in dir.
func (d *Data) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save benchmark %q: %w", d.Name, err)
	}
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return fmt.Errorf("save benchmark %q: %w", d.Name, err)
	}
	path := filepath.Join(dir, d.Name+".json")
	if err := os.WriteFile(path+".tmp", append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("save benchmark %q: %w", d.Name, err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("save benchmark %q: %w", d.Name, err)
	}
	return nil
}

// Load reads what Save wrote; nil if there is nothing.
func Load(dir, name string) (*Data, error) {
	text, err := os.ReadFile(filepath.Join(dir, name+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load benchmark %q: %w", name, err)
	}
	var data Data
	if err := json.Unmarshal(text, &data); err != nil {
		return nil, fmt.Errorf("load benchmark %q: %w", name, err)
	}
	return &data, nil
}
