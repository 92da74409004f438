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
	require.Contains(t, string(picture), `d="M0 57.9L160 21.6L320 39.7"`, "to scale")
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
	require.Contains(t, string(picture), "H320", "one value is a line, too")
}
