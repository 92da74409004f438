package agent

// Features that a Node declares in its status, by the names of Kubernetes. The scheduler places no Pod that needs a feature on
// a Node that does not declare it, and the API server rejects updates of Pods that need one.
const (
	// featureWebSockets: the kubelet's own server translates WebSocket streams to those of the runtime, so that the API
	// server passes them on as they are.
	featureWebSockets = "ExtendWebSocketsToKubelet"
	// featurePodResize: CPU and memory of a Pod as a whole can change while it runs.
	featurePodResize = "InPlacePodLevelResourcesVerticalScaling"
	// featureInitContainerResize: CPU and memory of an init container can change while it runs.
	featureInitContainerResize = "InPlacePodVerticalScalingInitContainers"
	// featureRestartAll: the exit of a container can restart all containers of its Pod.
	featureRestartAll = "RestartAllContainersOnContainerExits"
)

// declaredFeatures returns the names of the declared features, sorted. Not among them are user namespaces on the host's
// network (UserNamespacesHostNetworkSupport), which the kubelet does not have.
func declaredFeatures() []string {
	return []string{featureWebSockets, featurePodResize, featureInitContainerResize, featureRestartAll}
}
