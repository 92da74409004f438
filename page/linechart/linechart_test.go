package linechart_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/page/linechart"
)

func TestAChartSaysInWordsWhatItShows(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	chart := linechart.Chart{ID: "c", Title: "CPU of node <b>", Limit: 4, Format: func(v float64) string { return fmt.Sprintf("%.1f cores", v) }}
	require.Equal(t, "CPU of node <b>: nothing is measured yet.", chart.Text())
	empty, err := chart.SVG()
	require.NoError(t, err)
	require.Empty(t, empty)
	for i, value := range []float64{1, 3, 2} {
		chart.Points = append(chart.Points, linechart.Point{At: start.Add(time.Duration(i) * 5 * time.Second), Value: value})
	}
	require.Equal(t, "CPU of node <b>: now 2.0 cores of 4.0 cores, between 1.0 cores and 3.0 cores in the last 10s.", chart.Text())
	picture, err := chart.SVG()
	require.NoError(t, err)
	require.Contains(t, string(picture), `d="M0 60L160 20L320 40"`, "to scale, below the limit")
	require.Contains(t, string(picture), "<span>4.0 cores, all that there is</span>")
	require.Contains(t, string(picture), "<span>10 s ago</span><span>now 2.0 cores</span>")
	require.NotContains(t, string(picture), "<b>", "a name of others stays text")
	require.NotContains(t, string(picture), "style=", "the page's policy forbids inline styles")
	decoder := xml.NewDecoder(strings.NewReader(string(picture)))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
	}
	chart.Points = chart.Points[:1]
	picture, err = chart.SVG()
	require.NoError(t, err)
	require.Contains(t, string(picture), `d="M0 26.7L320 26.7"`, "one value is a line, too, below a round number")
	require.Contains(t, string(picture), "<span>1.5 cores</span>")
	chart.Unit, chart.Limit = 1<<20, 0
	for value, want := range map[float64]string{0: "1.0", 1 << 20: "1.5", 99 << 20: "150.0", 800 << 20: "1000.0"} {
		chart.Points[0].Value = value
		chart.Format = func(v float64) string { return fmt.Sprintf("%.1f", v/(1<<20)) }
		picture, err = chart.SVG()
		require.NoError(t, err)
		require.Contains(t, string(picture), "<span>"+want+"</span>")
	}
}
