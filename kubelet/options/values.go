package options

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/quantity"
	"github.com/berth-dev/berth/internal/resourcename"
)

// ipValue is a flag with an IP address.
type ipValue struct{ address *string }

var _ pflag.Value = ipValue{}

// String implements pflag.Value.
func (v ipValue) String() string {
	if v.address == nil {
		return ""
	}
	return *v.address
}

// Set implements pflag.Value.
func (v ipValue) Set(value string) error {
	if net.ParseIP(value) == nil {
		return fmt.Errorf("%q is not an IP address", value)
	}
	*v.address = value
	return nil
}

// Type implements pflag.Value.
func (v ipValue) Type() string { return "ip" }

// taintsValue is a flag with a list of taints, each KEY=VALUE:EFFECT or KEY:EFFECT.
type taintsValue struct{ taints *[]corev1.Taint }

var _ pflag.Value = (*taintsValue)(nil)

// String implements pflag.Value.
func (v *taintsValue) String() string {
	if v.taints == nil {
		return ""
	}
	var list []string
	for _, taint := range *v.taints {
		list = append(list, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
	}
	return strings.Join(list, ",")
}

// Set implements pflag.Value. It replaces the list.
func (v *taintsValue) Set(value string) error {
	var taints []corev1.Taint
	for text := range strings.SplitSeq(value, ",") {
		if text == "" {
			continue
		}
		key, effect, ok := strings.Cut(text, ":")
		if !ok {
			return fmt.Errorf("taint %q: want KEY=VALUE:EFFECT", text)
		}
		key, content, _ := strings.Cut(key, "=")
		taint := corev1.Taint{Key: key, Value: content, Effect: corev1.TaintEffect(effect)}
		same := func(other corev1.Taint) bool { return other.Key == taint.Key && other.Effect == taint.Effect }
		if slices.ContainsFunc(taints, same) {
			return fmt.Errorf("taint %q: there is another one with its key and effect", text)
		}
		taints = append(taints, taint)
	}
	*v.taints = taints
	return nil
}

// Type implements pflag.Value.
func (v *taintsValue) Type() string { return "[]core.Taint" }

// reservedMemoryValue is a flag with memory of NUMA nodes, NODE:TYPE=AMOUNT,…;…
type reservedMemoryValue struct {
	list *[]kubeletconfig.MemoryReservation
	set  bool // the first value replaces the list, later ones are added to it
}

var _ pflag.Value = (*reservedMemoryValue)(nil)

// String implements pflag.Value.
func (v *reservedMemoryValue) String() string {
	if v.list == nil {
		return ""
	}
	var nodes []string
	for _, reservation := range *v.list {
		var limits []string
		for name, amount := range reservation.Limits {
			limits = append(limits, string(name)+"="+amount.String())
		}
		slices.Sort(limits)
		nodes = append(nodes, fmt.Sprintf("%d:%s", reservation.NumaNode, strings.Join(limits, ",")))
	}
	return strings.Join(nodes, ";")
}

// Set implements pflag.Value.
func (v *reservedMemoryValue) Set(value string) error {
	if !v.set {
		*v.list, v.set = nil, true
	}
	for text := range strings.SplitSeq(value, ";") {
		if text == "" {
			continue
		}
		number, list, ok := strings.Cut(text, ":")
		node, err := strconv.ParseInt(number, 10, 32)
		if !ok || err != nil {
			return fmt.Errorf("reserved memory %q: want NODE:TYPE=AMOUNT,…", text)
		}
		reservation := kubeletconfig.MemoryReservation{NumaNode: int32(node), Limits: corev1.ResourceList{}}
		for limit := range strings.SplitSeq(list, ",") {
			name, amount, ok := strings.Cut(limit, "=")
			parsed, err := quantity.Parse(amount)
			if !ok || err != nil || name != string(corev1.ResourceMemory) && !resourcename.IsHugePages(corev1.ResourceName(name)) {
				return fmt.Errorf("reserved memory %q: want memory=AMOUNT or hugepages-SIZE=AMOUNT", limit)
			}
			reservation.Limits[corev1.ResourceName(name)] = parsed
		}
		*v.list = append(*v.list, reservation)
	}
	return nil
}

// Type implements pflag.Value.
func (v *reservedMemoryValue) Type() string { return "reserved-memory" }
