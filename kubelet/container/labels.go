package container

// The names below are upstream's, letter by letter: with them an upstream kubelet and this one can take over each
// other's containers on the same node.
const (
	// PodNameLabel, PodNamespaceLabel and PodUIDLabel stand on sandboxes and containers.
	PodNameLabel      = "io.kubernetes.pod.name"
	PodNamespaceLabel = "io.kubernetes.pod.namespace"
	PodUIDLabel       = "io.kubernetes.pod.uid"
	// ContainerNameLabel stands on containers.
	ContainerNameLabel = "io.kubernetes.container.name"

	// HashAnnotation is the hash of the container's name and image, in hexadecimal.
	HashAnnotation = "io.kubernetes.container.hash"
	// RestartCountAnnotation is the attempt, in decimal.
	RestartCountAnnotation = "io.kubernetes.container.restartCount"
	// TerminationMessagePathAnnotation and TerminationMessagePolicyAnnotation are copied from the spec.
	TerminationMessagePathAnnotation   = "io.kubernetes.container.terminationMessagePath"
	TerminationMessagePolicyAnnotation = "io.kubernetes.container.terminationMessagePolicy"
	// PreStopAnnotation is the JSON of lifecycle.preStop, and PortsAnnotation that of ports.
	PreStopAnnotation = "io.kubernetes.container.preStopHandler"
	PortsAnnotation   = "io.kubernetes.container.ports"
	// DeletionGracePeriodAnnotation and TerminationGracePeriodAnnotation are the Pod's, in seconds.
	DeletionGracePeriodAnnotation    = "io.kubernetes.pod.deletionGracePeriod"
	TerminationGracePeriodAnnotation = "io.kubernetes.pod.terminationGracePeriod"
)
