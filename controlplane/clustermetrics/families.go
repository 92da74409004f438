package clustermetrics

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
)

const (
	// processLabel and nodeLabel name the process that has a metric, and its node. No metric of Kubernetes has them.
	processLabel = "berth_process"
	nodeLabel    = "berth_node"
)

// families are the metrics of several processes, by name. The zero value is empty.
type families map[string]*dto.MetricFamily

// add adds the metrics of one process with the labels, in the order of the names. A family of which the process has given samples
// already is left out, because it would have the same samples twice; so is one whose type differs from another process's, which the
// error says.
func (f families) add(of []*dto.MetricFamily, labels []*dto.LabelPair, given map[string]bool) error {
	var errs []error
	for _, family := range of {
		if given[family.GetName()] {
			continue
		}
		have := f[family.GetName()]
		if have == nil {
			have = &dto.MetricFamily{Name: family.Name, Help: family.Help, Type: family.Type, Unit: family.Unit}
			f[family.GetName()] = have
		}
		if have.GetType() != family.GetType() {
			errs = append(errs, fmt.Errorf("metric %s is a %s of one process and a %s of another", family.GetName(), have.GetType(), family.GetType()))
			continue
		}
		valid := make([]*dto.Metric, 0, len(family.Metric))
		for _, metric := range family.Metric {
			if err := check(family, metric); err != nil {
				errs = append(errs, fmt.Errorf("metric %q: %w", family.GetName(), err))
				continue
			}
			// A registry shares the labels of a metric between all readings of it.
			metric.Label = slices.Concat(metric.Label, labels)
			slices.SortFunc(metric.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
			valid = append(valid, metric)
		}
		have.Metric = append(have.Metric, valid...)
	}
	for _, family := range of {
		given[family.GetName()] = true
	}
	return errors.Join(errs...)
}

// check returns an error for a sample after which clients would refuse the whole page: one of a process must not hide those of all others.
func check(family *dto.MetricFamily, metric *dto.Metric) error {
	if !model.LegacyValidation.IsValidMetricName(family.GetName()) || !utf8.ValidString(family.GetHelp()) {
		return errors.New("its name is none, or its help no text")
	}
	seen := map[string]bool{processLabel: true, nodeLabel: true}
	for _, label := range metric.Label {
		name := label.GetName()
		if seen[name] || !model.LegacyValidation.IsValidLabelName(name) || name == model.MetricNameLabel || !utf8.ValidString(label.GetValue()) {
			return fmt.Errorf("a sample has the label %q, which is none, or belongs to another label or to this page", name)
		}
		seen[name] = true
	}
	return checkValue(family.GetType(), metric, seen)
}

// checkValue returns an error for a sample without a value of the type, or with a label that is made from the value.
func checkValue(kind dto.MetricType, metric *dto.Metric, labels map[string]bool) error {
	valid := false
	switch kind {
	case dto.MetricType_COUNTER:
		valid = metric.Counter != nil
	case dto.MetricType_GAUGE:
		valid = metric.Gauge != nil
	case dto.MetricType_UNTYPED:
		valid = metric.Untyped != nil
	case dto.MetricType_SUMMARY:
		valid = metric.Summary != nil && !labels[model.QuantileLabel]
	case dto.MetricType_HISTOGRAM:
		valid = metric.Histogram != nil && !labels[model.BucketLabel]
	}
	if !valid {
		return fmt.Errorf("a sample is not that of a %s", kind)
	}
	return nil
}

// sorted returns the families in the order of their names.
func (f families) sorted() []*dto.MetricFamily {
	list := make([]*dto.MetricFamily, 0, len(f))
	for _, name := range slices.Sorted(maps.Keys(f)) {
		list = append(list, f[name])
	}
	return list
}
