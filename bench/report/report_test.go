package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/report"
)

func data() *harness.Data {
	d := &harness.Data{Name: "speed", Title: "Speed", About: "How fast.", Axis: "size"}
	for _, scale := range []float64{10, 1000} {
		c := harness.CaseData{
			Name: "case <" + strings.Repeat("x", int(scale/100)) + ">", Scale: scale, Variants: []string{"ours", "theirs"},
			Metrics: []harness.Metric{
				{Name: "time", Unit: "ms", Better: harness.Lower}, {Name: "extra", Optional: true, Better: harness.Lower},
			},
			Targets: []harness.Target{{Metric: "time", Against: "theirs", Ratio: 0.5}, {Metric: "time", Ratio: 1}},
			Failed:  map[string]string{"theirs": "broke in round 3"},
		}
		for round := range 3 {
			c.Samples = append(c.Samples,
				harness.SampleData{Variant: "ours", Round: round, Load: float64(round),
					Values: map[string]float64{"time": 2 + float64(round)}, Series: map[string][]float64{"each": {1, 2, 3}}})
		}
		c.Samples = append(c.Samples,
			harness.SampleData{Variant: "theirs", Load: 9.5, Values: map[string]float64{"time": 12345.6, "extra": 7}})
		d.Cases = append(d.Cases, c)
	}
	return d
}

func TestWrite(t *testing.T) {
	docs := t.TempDir()
	require.NoError(t, data().Save(filepath.Join(docs, "benchmarks")))
	absent := &harness.Data{Name: "later", Title: "Later", NotMeasured: "not built."}
	require.NoError(t, absent.Save(filepath.Join(docs, "benchmarks")))
	require.NoError(t, report.Write(docs, []harness.Benchmark{
		{Name: "speed"}, {Name: "later"}, {Name: "never", Title: "Never", About: "About it."},
	}))
	text, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	require.NoError(t, err)
	for _, want := range []string{
		"## Speed (`speed`)",
		"| case <> (3 rounds) | ours | theirs | ratio | target |",
		"| time, ms | 3.00 (2.00 to 4.00) | 12,300 | 0.00024 | <= 0.50 of theirs: met; <= 1.00: **missed** |",
		"| extra,  | - | 7.00 | - |",
		"theirs: a sample failed: broke in round 3",
		"load average 0.0 to 9.5",
		"## Later (`later`)",
		"**Not measured**: not built.\n",
		"## Never (`never`)\n\nAbout it.\n\n**Not measured**: never run.\n",
	} {
		require.Contains(t, string(text), want)
	}
	plots, err := filepath.Glob(filepath.Join(docs, "benchmarks", "*.svg"))
	require.NoError(t, err)
	require.Len(t, plots, 3, "lines, bars and distributions")
	for _, plot := range plots {
		require.Contains(t, string(text), "(benchmarks/"+filepath.Base(plot)+")")
		requireXML(t, plot)
	}
}

func requireXML(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	for decoder := xml.NewDecoder(file); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err, path)
		if element, is := token.(xml.StartElement); is {
			for _, attr := range element.Attr {
				require.NotContains(t, attr.Value, "NaN", "%s: %s", path, element.Name.Local)
				require.NotContains(t, attr.Value, "Inf", "%s: %s", path, element.Name.Local)
			}
		}
	}
}

// TestOneVariant: what is compared with nothing shows all its metrics, also those that are 0.
func TestOneVariant(t *testing.T) {
	docs := t.TempDir()
	d := &harness.Data{Name: "alone", Title: "Alone", Cases: []harness.CaseData{{
		Name: "case", Variants: []string{"ours"}, Metrics: []harness.Metric{
			{Name: "start", Unit: "s"}, {Name: "memory of a", Unit: "MiB"}, {Name: "stop", Unit: "s"}, {Name: "nothing", Unit: "B"},
		},
		Samples: []harness.SampleData{{Variant: "ours", Values: map[string]float64{
			"start": 2, "memory of a": 3, "stop": 1, "nothing": 0,
		}}},
	}}}
	require.NoError(t, d.Save(filepath.Join(docs, "benchmarks")))
	require.NoError(t, report.Write(docs, []harness.Benchmark{{Name: "alone"}}))
	plot := filepath.Join(docs, "benchmarks", "alone.svg")
	requireXML(t, plot)
	text, err := os.ReadFile(plot)
	require.NoError(t, err)
	for _, name := range []string{"start", "stop", "memory of a", "nothing"} {
		require.Contains(t, string(text), ">"+name+"</text>")
	}
	require.Less(t, strings.Index(string(text), ">stop<"), strings.Index(string(text), ">memory of a<"), "one unit together")
}

func TestSameDataSameReport(t *testing.T) {
	var texts []string
	for range 2 {
		docs := t.TempDir()
		require.NoError(t, data().Save(filepath.Join(docs, "benchmarks")))
		require.NoError(t, report.Write(docs, []harness.Benchmark{{Name: "speed"}}))
		text, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
		require.NoError(t, err)
		texts = append(texts, string(text))
	}
	require.Equal(t, texts[0], texts[1])
}
