package clustermetrics

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	dto "github.com/prometheus/client_model/go"
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
		for _, metric := range family.Metric {
			// A registry shares the labels of a metric between all readings of it.
			metric.Label = slices.Concat(metric.Label, labels)
			slices.SortFunc(metric.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
		}
		have.Metric = append(have.Metric, family.Metric...)
	}
	for _, family := range of {
		given[family.GetName()] = true
	}
	return errors.Join(errs...)
}

// sorted returns the families in the order of their names.
func (f families) sorted() []*dto.MetricFamily {
	list := make([]*dto.MetricFamily, 0, len(f))
	for _, name := range slices.Sorted(maps.Keys(f)) {
		list = append(list, f[name])
	}
	return list
}
