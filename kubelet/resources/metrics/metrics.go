package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Values of the labels of Aligned and AlignFailures.
const (
	ScopeContainer = "container"
	ScopePod       = "pod"
	BoundaryNode   = "numa_node"
	BoundaryCore   = "physical_cpu"
	BoundaryCache  = "uncore_cache"
)

// Values of the labels of Allocations, AllocationErrors and Assignments.
const (
	ResourceCPU    = "cpu"
	ResourceMemory = "memory"
	sourceNode     = "node"
	exclusiveNode  = "node_exclusive"
)

// Metrics are the metrics of all managers. It has many fields because each is a metric of its own.
type Metrics struct {
	CPURequests, CPUErrors, MemoryRequests, MemoryErrors prometheus.Counter
	// SharedPool is in thousandths of a CPU.
	SharedPool, ExclusiveCPUs prometheus.Gauge
	// CPUsByNode are the exclusive CPUs by numa_node.
	CPUsByNode *prometheus.GaugeVec
	// Aligned and AlignFailures have the labels scope and boundary.
	Aligned, AlignFailures *prometheus.CounterVec
	TopologyRequests       prometheus.Counter
	TopologyErrors         prometheus.Counter
	// TopologyDuration is in milliseconds.
	TopologyDuration prometheus.Histogram
	// DeviceRegistrations and DeviceAllocation have the label resource_name.
	DeviceRegistrations *prometheus.CounterVec
	DeviceAllocation    *prometheus.HistogramVec
	// Allocations, AllocationErrors and Assignments are those of resources of their own that containers get of the node; a container
	// has one assignment of a resource, and one allocation of each kind of it.
	Allocations, AllocationErrors, Assignments *prometheus.CounterVec
	// PodResources counts the requests of podresources clients, by their kind and the API's version.
	PodResources map[string]*prometheus.CounterVec
}

// Kinds of PodResources.
const (
	RequestsTotal          = "requests_total"
	RequestsList           = "requests_list"
	RequestsGetAllocatable = "requests_get_allocatable"
	RequestsGet            = "requests_get"
	ErrorsList             = "errors_list"
	ErrorsGetAllocatable   = "errors_get_allocatable"
	ErrorsGet              = "errors_get"
)

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kubelet", Name: name, Help: help})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kubelet", Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "kubelet", Name: name, Help: help}, labels)
}

// managerCounters returns counters of all resource managers.
func managerCounters(name, help, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "resource_manager", Name: name, Help: help}, []string{"resource_name", label})
}

// CountAllocation counts what a container has got of a resource: so many allocations, which are one assignment.
func (m *Metrics) CountAllocation(resource string, allocations int) {
	m.Allocations.WithLabelValues(resource, sourceNode).Add(float64(allocations))
	m.Assignments.WithLabelValues(resource, exclusiveNode).Inc()
}

// CountError counts a failure to give a container a resource.
func (m *Metrics) CountError(resource string) {
	m.AllocationErrors.WithLabelValues(resource, sourceNode).Inc()
}

// ShowNodes makes the counts of NUMA alignment appear before the first admission.
func (m *Metrics) ShowNodes() {
	for _, scope := range []string{ScopeContainer, ScopePod} {
		m.Aligned.WithLabelValues(scope, BoundaryNode)
		m.AlignFailures.WithLabelValues(scope, BoundaryNode)
	}
}

// ShowCPUs makes the counts of the alignment of CPUs appear before the first admission.
func (m *Metrics) ShowCPUs() {
	m.Aligned.WithLabelValues(ScopeContainer, BoundaryCore)
	m.AlignFailures.WithLabelValues(ScopeContainer, BoundaryCore)
	m.Aligned.WithLabelValues(ScopeContainer, BoundaryCache)
}

// New returns the metrics, all at zero.
func New() *Metrics {
	m := &Metrics{
		CPURequests:    counter("cpu_manager_pinning_requests_total", "Containers that were to get CPUs of their own."),
		CPUErrors:      counter("cpu_manager_pinning_errors_total", "Containers that could not get CPUs of their own."),
		MemoryRequests: counter("memory_manager_pinning_requests_total", "Containers that were to get memory of chosen NUMA nodes."),
		MemoryErrors:   counter("memory_manager_pinning_errors_total", "Containers that could not get memory of chosen NUMA nodes."),
		SharedPool:     gauge("cpu_manager_shared_pool_size_millicores", "Thousandths of CPUs that containers without CPUs of their own share, without the reserved ones."),
		ExclusiveCPUs:  gauge("cpu_manager_exclusive_cpu_allocation_count", "CPUs that one container has for itself."),
		CPUsByNode: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "kubelet", Name: "cpu_manager_allocation_per_numa", Help: "CPUs that one container has for itself, by NUMA node.",
		}, []string{BoundaryNode}),
		Aligned:          counters("container_aligned_compute_resources_count", "Allocations of aligned resources.", "scope", "boundary"),
		AlignFailures:    counters("container_aligned_compute_resources_failure_count", "Allocations that failed because resources could not be aligned.", "scope", "boundary"),
		TopologyRequests: counter("topology_manager_admission_requests_total", "Pods that the topology manager has decided on."),
		TopologyErrors:   counter("topology_manager_admission_errors_total", "Pods that the topology manager has rejected."),
		TopologyDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "kubelet", Name: "topology_manager_admission_duration_ms", Help: "Milliseconds of a decision of the topology manager.",
			Buckets: prometheus.ExponentialBuckets(.05, 2, 15),
		}),
		DeviceRegistrations: counters("device_plugin_registration_total", "Registrations of device plugins.", "resource_name"),
		DeviceAllocation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "kubelet", Name: "device_plugin_alloc_duration_seconds", Help: "Seconds that a device plugin needs for a request to allocate.",
			Buckets: prometheus.DefBuckets,
		}, []string{"resource_name"}),
		Allocations:      managerCounters("allocations_total", "Allocations of resources that one container has for itself.", "source"),
		AllocationErrors: managerCounters("allocation_errors_total", "Allocations of resources for one container that failed.", "source"),
		Assignments:      managerCounters("container_assignments", "Containers that have got resources, by the kind of the assignment.", "assignment_type"),
		PodResources:     map[string]*prometheus.CounterVec{},
	}
	for _, kind := range []string{RequestsTotal, RequestsList, RequestsGetAllocatable, RequestsGet, ErrorsList, ErrorsGetAllocatable, ErrorsGet} {
		m.PodResources[kind] = counters("pod_resources_endpoint_"+kind, "Requests to the podresources socket ("+kind+").", "server_api_version")
	}
	return m
}

// Collectors returns all metrics, to be registered.
func (m *Metrics) Collectors() []prometheus.Collector {
	all := []prometheus.Collector{
		m.CPURequests, m.CPUErrors, m.MemoryRequests, m.MemoryErrors, m.SharedPool, m.ExclusiveCPUs, m.CPUsByNode, m.Aligned,
		m.AlignFailures, m.TopologyRequests, m.TopologyErrors, m.TopologyDuration, m.DeviceRegistrations, m.DeviceAllocation,
		m.Allocations, m.AllocationErrors, m.Assignments,
	}
	for _, c := range m.PodResources {
		all = append(all, c)
	}
	return all
}
