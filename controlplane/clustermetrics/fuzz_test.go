package clustermetrics

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/berth-dev/berth/controlplane/contain"
)

// pageOf returns the families as a process sends them.
func pageOf(f *testing.F, families ...*dto.MetricFamily) []byte {
	var page bytes.Buffer
	for _, family := range families {
		_, err := protodelim.MarshalTo(&page, family)
		require.NoError(f, err)
	}
	return page.Bytes()
}

// answer is a transport that answers with a page.
type answer struct {
	binary bool
	page   []byte
}

// RoundTrip implements http.RoundTripper.
func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	if a.binary {
		recorder.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	}
	_, err := recorder.Write(a.page)
	return recorder.Result(), err
}

// FuzzPages merges the page of one process with an arbitrary one of another: clients can read the result, and it has the samples of the first.
func FuzzPages(f *testing.F) {
	label := func(name, value string) *dto.LabelPair {
		return &dto.LabelPair{Name: proto.String(name), Value: proto.String(value)}
	}
	counter := &dto.MetricFamily{Name: proto.String("x_total"), Type: dto.MetricType_COUNTER.Enum(), Metric: []*dto.Metric{
		{Label: []*dto.LabelPair{label("pod", "a\"\n")}, Counter: &dto.Counter{Value: proto.Float64(1)}},
	}}
	f.Add(pageOf(f, counter), true)
	f.Add(pageOf(f, counter, counter), true)
	f.Add(pageOf(f, &dto.MetricFamily{Name: proto.String("y"), Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{
		{Label: []*dto.LabelPair{label(nodeLabel, "other"), label("", "x")}, Gauge: &dto.Gauge{}}, {},
	}}), true)
	f.Add(pageOf(f, &dto.MetricFamily{Name: proto.String("kubelet_ok"), Type: dto.MetricType_HISTOGRAM.Enum()}), true)
	f.Add([]byte("# TYPE y counter\ny{a=\"b\",berth_process=\"x\"} 1\ny 2\n"), false)
	f.Fuzz(func(t *testing.T, page []byte, binary bool) {
		good := []byte("# TYPE kubelet_ok gauge\nkubelet_ok 1\n")
		merged := families{}
		for i, one := range []answer{{page: good}, {binary, page}} {
			var found []*dto.MetricFamily
			err := contain.Do("clustermetrics.read", func() (err error) { // as gather does: expfmt's parser panics for some pages
				found, err = fetch(context.Background(), &http.Client{Transport: one}, "http://process/metrics")
				return err
			})
			if err != nil && i == 1 && len(found) == 0 {
				return
			}
			s := source{process: processKubelet, node: []string{"good", "bad"}[i]}
			_ = merged.add(found, s.labels(), map[string]bool{}) // what is left out is in the error
		}
		var text bytes.Buffer
		encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
		for _, family := range merged.sorted() {
			_ = encoder.Encode(family) // as promhttp does, which goes on
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		parsed, err := parser.TextToMetricFamilies(&text)
		require.NoError(t, err)
		require.NotNil(t, parsed["kubelet_ok"])
		require.Contains(t, parsed["kubelet_ok"].String(), `"good"`)
	})
}
