package stats

import (
	"cmp"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// pressure returns how long processes of the machine are stalled on a resource: cpu, memory or io. It is nil if the
// kernel does not measure it.
func (p *Provider) pressure(resource string) *statsapi.PSIStats {
	return readPressure(filepath.Join(p.config.Proc, "pressure", resource))
}

// readPressure parses a pressure file of the kernel; it returns nil if there is none.
func readPressure(file string) *statsapi.PSIStats {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	s := &statsapi.PSIStats{}
	for line := range strings.Lines(string(data)) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "some":
			s.Some = parsePSI(rest)
		case "full":
			s.Full = parsePSI(rest)
		}
	}
	return s
}

// parsePSI parses "avg10=0.00 avg60=0.00 avg300=0.00 total=0"; the kernel counts total in microseconds.
func parsePSI(text string) (d statsapi.PSIData) {
	for _, field := range strings.Fields(text) {
		name, value, _ := strings.Cut(field, "=")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch name {
		case "avg10":
			d.Avg10 = share(number)
		case "avg60":
			d.Avg60 = share(number)
		case "avg300":
			d.Avg300 = share(number)
		case "total":
			if total := parseUint(value); total != nil {
				d.Total = *total * uint64(time.Microsecond)
			}
		}
	}
	return d
}

// share returns 0 for what is no share of time: JSON has no such numbers, and one would make all statistics of the node unreadable.
func share(number float64) float64 {
	if math.IsNaN(number) || math.IsInf(number, 0) || number < 0 {
		return 0
	}
	return number
}

// psiStats converts the runtime's pressure statistics.
func psiStats(in *runtimeapi.PsiStats) *statsapi.PSIStats {
	if in == nil {
		return nil
	}
	convert := func(d *runtimeapi.PsiData) statsapi.PSIData {
		return statsapi.PSIData{Total: d.GetTotal(), Avg10: share(d.GetAvg10()), Avg60: share(d.GetAvg60()), Avg300: share(d.GetAvg300())}
	}
	return &statsapi.PSIStats{Full: convert(in.Full), Some: convert(in.Some)}
}

// ioStats converts the runtime's I/O statistics.
func ioStats(in *runtimeapi.IoUsage) *statsapi.IOStats {
	if in == nil {
		return nil
	}
	return &statsapi.IOStats{Time: timestamp(in.Timestamp), PSI: psiStats(in.Psi)}
}

// linksOfContainers are how the names of the interfaces on the node's side of containers' links, and of the bridges of Docker, begin. What
// they carry is the traffic of containers, which has passed another interface of the node, or never leaves it.
var linksOfContainers = []string{"veth", "docker", "nerdctl"}

// isOwnInterface reports whether an interface is the node's own, as cAdvisor has it.
func isOwnInterface(name string) bool {
	return name != "lo" && !slices.ContainsFunc(linksOfContainers, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// networkStats returns the traffic of the machine's own interfaces; the default one is that of the default route.
func (p *Provider) networkStats(now time.Time) *statsapi.NetworkStats {
	data, err := os.ReadFile(filepath.Join(p.config.Proc, "net/dev"))
	if err != nil {
		return nil
	}
	defaultInterface := p.defaultInterface()
	s := &statsapi.NetworkStats{Time: metav1.NewTime(now)}
	for line := range strings.Lines(string(data)) {
		name, rest, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		// Received bytes, packets, errors and five others, then sent bytes, packets, errors …
		numbers := strings.Fields(rest)
		if !ok || len(numbers) < 11 || !isOwnInterface(name) {
			continue
		}
		one := statsapi.InterfaceStats{
			Name: name, RxBytes: parseUint(numbers[0]), RxErrors: parseUint(numbers[2]), TxBytes: parseUint(numbers[8]),
			TxErrors: parseUint(numbers[10]),
		}
		if name == defaultInterface {
			s.InterfaceStats = one
		}
		s.Interfaces = append(s.Interfaces, one)
	}
	return s
}

// defaultInterface returns the interface of the default route, "" if there is none.
func (p *Provider) defaultInterface() string {
	data, err := os.ReadFile(filepath.Join(p.config.Proc, "net/route"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 7 && fields[1] == "00000000" && fields[7] == "00000000" {
			return fields[0]
		}
	}
	return ""
}

// parseUint returns nil if the text is not a number.
func parseUint(text string) *uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// sum adds two values, either of which may be unknown.
func sum(a, b *uint64) *uint64 {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	n := *a + *b
	return &n
}
