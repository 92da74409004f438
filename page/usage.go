package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/page/linechart"
)

const (
	// usagePeriod is how often the usage of the nodes is read while a page shows it: there is no event for it.
	usagePeriod = 5 * time.Second
	// usageTimeout bounds one reading, the first of which takes a second because CPU is a rate.
	usageTimeout = 10 * time.Second
	// maxPoints bounds what is kept: an hour.
	maxPoints = 720
)

// usage is what the nodes have used since the first page was opened. It is read only while a page wants it.
type usage struct {
	read   func(ctx context.Context) ([]nodeUsage, error)
	wanted wakeup.Signal

	mu     sync.Mutex // guards all below
	asked  time.Time
	why    string // why nothing is known
	points map[string]*nodePoints
}

// nodeUsage is the usage of a node at one moment.
type nodeUsage struct {
	Name        string
	CPU, Memory float64 // in cores and bytes
}

// nodePoints are the values of a node.
type nodePoints struct{ cpu, memory []linechart.Point }

func newUsage(client kubernetes.Interface) *usage {
	return &usage{
		wanted: wakeup.NewSignal(), points: make(map[string]*nodePoints),
		read: func(ctx context.Context) ([]nodeUsage, error) { return readUsage(ctx, client) },
	}
}

// readUsage reads the API metrics.k8s.io.
func readUsage(ctx context.Context, client kubernetes.Interface) ([]nodeUsage, error) {
	direct, ok := client.Discovery().RESTClient().(*rest.RESTClient)
	if !ok || direct == nil {
		return nil, errors.New("read the usage of the nodes: the client has no connection")
	}
	data, err := direct.Get().AbsPath("/apis/metrics.k8s.io/v1beta1/nodes").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the usage of the nodes: %w", err)
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Usage map[string]resource.Quantity `json:"usage"`
		} `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("read the usage of the nodes: %w", err)
	}
	var all []nodeUsage
	for _, item := range list.Items {
		cpu, memory := item.Usage["cpu"], item.Usage["memory"]
		all = append(all, nodeUsage{Name: item.Metadata.Name, CPU: cpu.AsApproximateFloat64(), Memory: memory.AsApproximateFloat64()})
	}
	return all, nil
}

// want has the usage read soon, unless it was a moment ago.
func (u *usage) want(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.asked) >= usagePeriod-time.Second {
		u.asked = now
		u.wanted.Notify()
	}
}

// follow reads the usage whenever it is wanted, and calls changed after that, until ctx ends.
func (u *usage) follow(ctx context.Context, now func() time.Time, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wanted.C():
		}
		limited, cancel := context.WithTimeout(ctx, usageTimeout)
		all, err := u.read(limited)
		cancel()
		u.add(now(), all, err)
		changed()
	}
}

func (u *usage) add(now time.Time, all []nodeUsage, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.why = ""
	if err != nil {
		u.why = err.Error()
	}
	for _, node := range all {
		points := u.points[node.Name]
		if points == nil {
			points = &nodePoints{}
			u.points[node.Name] = points
		}
		points.cpu = appendPoint(points.cpu, linechart.Point{At: now, Value: node.CPU})
		points.memory = appendPoint(points.memory, linechart.Point{At: now, Value: node.Memory})
	}
}

func appendPoint(points []linechart.Point, point linechart.Point) []linechart.Point {
	if extra := len(points) + 1 - maxPoints; extra > 0 {
		points = append([]linechart.Point(nil), points[extra:]...)
	}
	return append(points, point)
}

// charts draws the usage of a node. The id begins the ids of its elements.
func (u *usage) charts(node, id string, cpuLimit, memoryLimit float64) (cpu, memory template.HTML, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	points := u.points[node]
	if points == nil {
		return "", "", nil
	}
	cpu, err = linechart.Chart{ID: id + "c", Title: "CPU of node " + node, Points: points.cpu, Limit: cpuLimit, Format: func(value float64) string {
		return fmt.Sprintf("%.2f cores", value)
	}}.SVG()
	if err != nil {
		return "", "", err
	}
	memory, err = linechart.Chart{ID: id + "m", Title: "Memory of node " + node, Points: points.memory, Limit: memoryLimit, Unit: 1 << 20, Format: func(value float64) string {
		return fmt.Sprintf("%.0f MiB", value/(1<<20))
	}}.SVG()
	return cpu, memory, err
}

// unknown says why the usage is unknown; it is empty if it is known.
func (u *usage) unknown() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.why
}
