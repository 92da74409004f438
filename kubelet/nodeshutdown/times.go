package nodeshutdown

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/atomicfile"
)

// times are the times of the last shutdown: in metrics, and in a file, so that the kubelet after the shutdown shows them. One
// goroutine uses it.
type times struct {
	path       string
	start, end prometheus.Gauge
}

// stored is the content of the file.
type stored struct {
	StartTime time.Time `json:"startTime"`
	EndTime   time.Time `json:"endTime"`
}

func newTimes(path string, registerer prometheus.Registerer) (*times, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_graceful_shutdown_" + name + "_time_seconds", Help: help})
	}
	t := &times{
		path:  path,
		start: gauge("start", "Last graceful shutdown start time since unix epoch in seconds"),
		end:   gauge("end", "Last graceful shutdown end time since unix epoch in seconds"),
	}
	if registerer == nil {
		return t, nil
	}
	return t, errors.Join(registerer.Register(t.start), registerer.Register(t.end))
}

// load shows the times of the file, if there is one.
func (t *times) load() error {
	content, err := os.ReadFile(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var s stored
	if err := json.Unmarshal(content, &s); err != nil {
		return fmt.Errorf("%s is damaged (it can be removed): %w", t.path, err)
	}
	t.show(s)
	return nil
}

func (t *times) show(s stored) {
	seconds := func(at time.Time) float64 {
		if at.IsZero() {
			return 0
		}
		return float64(at.Unix()) + float64(at.Nanosecond())/1e9 // in nanoseconds, those of the year 2263 overflow
	}
	t.start.Set(seconds(s.StartTime))
	t.end.Set(seconds(s.EndTime))
}

// store stores and shows the times; the zero time is one that is not known yet.
func (t *times) store(start, end time.Time) error {
	s := stored{start, end}
	t.show(s)
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return atomicfile.Write(t.path, content, 0o600)
}
