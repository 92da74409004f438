package settings

// nodeFields are the fields of the Node object and of the API server's client.
func nodeFields() []Field {
	return []Field{
		{Path: "registerNode", Flag: "register-node", Support: Honoured,
			Does: "creates the Node; false: the kubelet waits until the Node exists, and then updates its status"},
		{Path: "registerWithTaints", Flag: "register-with-taints", Support: Honoured, Does: "taints of a Node that the kubelet creates: KEY=VALUE:EFFECT,…"},
		{Path: "providerID", Flag: "provider-id", Support: Honoured, Does: "the machine's ID at its cloud, in spec.providerID of the Node"},
		{Path: "nodeStatusUpdateFrequency", Flag: "node-status-update-frequency", Support: Honoured,
			Does: "how often the size of the disk is measured; other changes are reported at once"},
		{Path: "nodeStatusReportFrequency", Support: Honoured, Does: "how often the Node's status is written although nothing has changed"},
		{Path: "nodeLeaseDurationSeconds", Support: Honoured, Does: "the duration of the node's Lease, which is renewed each quarter of it"},
		{Path: "nodeStatusMaxImages", Flag: "node-status-max-images", Support: Honoured,
			Does: "how many images the Node's status lists, the largest first; -1: all"},
		{Path: "enableControllerAttachDetach", Flag: "enable-controller-attach-detach", Support: Refused,
			Does:  "leaves attaching and detaching volumes to the attach/detach controller",
			Limit: "want true: this kubelet attaches no volumes itself"},
		{Path: "eventRecordQPS", Flag: "event-qps", Support: Honoured, Does: "how many events are written per second in the long run; 0: 5"},
		{Path: "eventBurst", Flag: "event-burst", Support: Honoured, Does: "how many events are written at once; 0: 10"},
		{Path: "kubeAPIQPS", Flag: "kube-api-qps", Support: Honoured, Does: "how many requests are sent to the API server per second in the long run; 0: 5"},
		{Path: "kubeAPIBurst", Flag: "kube-api-burst", Support: Honoured, Does: "how many requests are sent to the API server at once; 0: 10"},
		{Path: "contentType", Flag: "kube-api-content-type", Support: Honoured, Does: "the content type of requests to the API server"},
		{Path: "allowedUnsafeSysctls", Flag: "allowed-unsafe-sysctls", Support: Honoured,
			Does: "the sysctls that Pods may set beside the safe ones; a name that ends in * allows all names that begin with the rest"},
		{Path: "podCIDR", Flag: "pod-cidr", Support: Honoured,
			Does: "the range of the Pods' addresses that a kubelet without an API server gives to the container runtime"},
	}
}

// podFields are the fields of Pods: their sources, their workers, their DNS and the container runtime.
func podFields() []Field {
	return []Field{
		{Path: "staticPodPath", Flag: "pod-manifest-path", Support: Honoured, Does: "a manifest of a static Pod, or a directory of them"},
		{Path: "staticPodURL", Flag: "manifest-url", Support: Honoured, Does: "a URL that serves manifests of static Pods"},
		{Path: "staticPodURLHeader", Flag: "manifest-url-header", Support: Honoured, Does: "headers of the requests to staticPodURL: NAME:VALUE,…; /configz shows them"},
		{Path: "fileCheckFrequency", Flag: "file-check-frequency", Support: Honoured,
			Does: "how often staticPodPath is read beside the kernel's notifications"},
		{Path: "httpCheckFrequency", Flag: "http-check-frequency", Support: Honoured, Does: "how often staticPodURL is requested"},
		{Path: "syncFrequency", Flag: "sync-frequency", Support: Honoured,
			Does: "the longest time between two syncs of a Pod; what changes is synced at once"},
		{Path: "maxPods", Flag: "max-pods", Support: Honoured, Does: "how many Pods the node takes"},
		{Path: "podsPerCore", Flag: "pods-per-core", Support: Honoured, Does: "how many Pods the node takes for each CPU, up to maxPods; 0: no such limit"},
		{Path: "podLogsDir", Support: Honoured, Does: "the directory of the containers' logs, to which the links in /var/log/containers lead"},
		{Path: "clusterDNS", Flag: "cluster-dns", Support: Honoured, Does: "the name servers of Pods with dnsPolicy ClusterFirst"},
		{Path: "clusterDomain", Flag: "cluster-domain", Support: Honoured, Does: "the domain of the cluster's Services"},
		{Path: "resolvConf", Flag: "resolv-conf", Support: Honoured,
			Does: "the resolver file that Pods inherit from; empty: they inherit nothing"},
		{Path: "crashLoopBackOff.maxContainerRestartPeriod", Support: Honoured, Does: "the longest wait between two starts of a container that keeps failing"},
		{Path: "seccompDefault", Support: Honoured, Does: "runs containers that name no seccomp profile with the runtime's default one"},
		{Path: "configMapAndSecretChangeDetectionStrategy", Support: Refused, Does: "watches the ConfigMaps and Secrets of the node's Pods",
			Limit:  "want Watch: this kubelet watches the ConfigMaps and Secrets of its Pods",
			Limits: func(c *Configuration) bool { return !watches(c) }},
		{Path: "volumeStatsAggPeriod", Flag: "volume-stats-agg-period", Support: Honoured,
			Does: "how old the reported usage of volumes on the node's own disk may be, which is measured when it is requested, file by file; " +
				"negative: that of their file system is reported"},
		{Path: "volumePluginDir", Flag: "volume-plugin-dir", Support: Warned, Does: "the directory of FlexVolume drivers",
			Limit: "FlexVolume, which Kubernetes has deprecated, is not supported: use a CSI driver"},
		{Path: "containerRuntimeEndpoint", Flag: "container-runtime-endpoint", Support: Honoured, Does: "the socket of the container runtime"},
		{Path: "imageServiceEndpoint", Flag: "image-service-endpoint", Support: Honoured,
			Does: "the socket of the image service; empty: that of the container runtime"},
		{Path: "runtimeRequestTimeout", Flag: "runtime-request-timeout", Support: Honoured,
			Does: "bounds a request to the container runtime; pulls, exec and stopping a container have bounds of their own"},
		{Path: "hairpinMode", Flag: "hairpin-mode", Support: Moot,
			Does: "how a Pod reaches itself through a Service; with a CRI runtime its CNI configuration says so, for upstream's kubelet, too"},
		{Path: "runOnce", Flag: "runonce", Support: Refused, Does: "runs the static Pods and exits",
			Limit: "want false: Kubernetes has removed the mode; `berth run` runs Pods without a cluster"},
		{Path: "userNamespaces.idsPerPod", Support: Honoured,
			Does: "how many user IDs a Pod with a user namespace has, a multiple of 65536; they are of those that /etc/subuid and /etc/subgid " +
				"delegate to the user kubelet, if that and getsubids exist"},
	}
}

// imageFields are the fields of images and logs.
func imageFields() []Field {
	return []Field{
		{Path: "registryPullQPS", Flag: "registry-qps", Support: Honoured, Does: "how many pulls start per second in the long run; 0: no limit"},
		{Path: "registryBurst", Flag: "registry-burst", Support: Honoured, Does: "how many pulls start at once, if registryPullQPS is above 0"},
		{Path: "serializeImagePulls", Flag: "serialize-image-pulls", Support: Honoured, Does: "pulls one image after the other"},
		{Path: "maxParallelImagePulls", Support: Honoured, Does: "how many images are pulled at the same time; no limit without a value"},
		{Path: "imagePullCredentialsVerificationPolicy", Support: Honoured,
			Does: "which present images a Pod may use without credentials that pulled them"},
		{Path: "preloadedImagesVerificationAllowlist", Support: Honoured, Does: "the images of the policy NeverVerifyAllowlistedImages"},
		{Path: "imageMinimumGCAge", Flag: "minimum-image-ttl-duration", Support: Honoured,
			Does: "how long an image is kept at least, however full its disk is"},
		{Path: "imageMaximumGCAge", Support: Honoured, Does: "how long an image may be unused; 0: for ever"},
		{Path: "imageGCHighThresholdPercent", Flag: "image-gc-high-threshold", Support: Honoured,
			Does: "the usage of the images' disk above which unused images are removed; 100: never"},
		{Path: "imageGCLowThresholdPercent", Flag: "image-gc-low-threshold", Support: Honoured, Does: "the usage that removing images aims at"},
		{Path: "containerLogMaxSize", Flag: "container-log-max-size", Support: Honoured, Does: "the size at which a container's log is rotated; negative: never"},
		{Path: "containerLogMaxFiles", Flag: "container-log-max-files", Support: Honoured, Does: "how many log files a container has at most"},
		{Path: "containerLogMaxWorkers", Support: Honoured, Does: "how many logs are rotated at the same time"},
		{Path: "containerLogMonitorInterval", Support: Honoured,
			Does: "the longest time between two checks of a log that is written to"},
	}
}
