package settings

// machineFields are the fields of the kubelet's process and of the machine's kernel.
func machineFields() []Field {
	const alpha = "want the default: it is an alpha feature of Kubernetes that this kubelet does not have"
	return []Field{
		{Path: "oomScoreAdj", Flag: "oom-score-adj", Support: Honoured, Does: "the kubelet's own oom_score_adj"},
		{Path: "maxOpenFiles", Flag: "max-open-files", Support: Honoured, Does: "how many files the kubelet may have open"},
		{Path: "protectKernelDefaults", Flag: "protect-kernel-defaults", Support: Honoured,
			Does: "refuses to start if a sysctl of the kernel differs from what the kubelet wants; false: the kubelet sets it"},
		{Path: "featureGates", Flag: "feature-gates", Support: Limited,
			Does:  "features of Kubernetes. This kubelet has most of them either always or not at all (see below); gates of other components have no effect",
			Limit: "the feature cannot be switched in this kubelet", Limits: func(c *Configuration) bool { return len(refusedGates(c.FeatureGates)) > 0 }},
		{Path: "logging.format", Flag: "logging-format", Support: Honoured, Does: "text or json, one line for each message on standard error"},
		{Path: "logging.flushFrequency", Flag: "log-flush-frequency", Support: Moot,
			Does: "how often buffered messages are written; this kubelet writes each at once"},
		{Path: "logging.verbosity", Flag: "v", Support: Honoured, Does: "how much is logged, 0 or more"},
		{Path: "logging.vmodule", Flag: "vmodule", Support: Honoured, Does: "verbosities of single source files, with the format text: PATTERN=N,…"},
		{Path: "logging.options.text.splitStream", Flag: "log-text-split-stream", Support: Refused, Does: "writes errors and other messages to different streams", Limit: alpha},
		{Path: "logging.options.text.infoBufferSize", Flag: "log-text-info-buffer-size", Support: Refused, Does: "buffers messages", Limit: alpha},
		{Path: "logging.options.json.splitStream", Flag: "log-json-split-stream", Support: Refused, Does: "writes errors and other messages to different streams", Limit: alpha},
		{Path: "logging.options.json.infoBufferSize", Flag: "log-json-info-buffer-size", Support: Refused, Does: "buffers messages", Limit: alpha},
		{Path: "makeIPTablesUtilChains", Flag: "make-iptables-util-chains", Support: Honoured,
			Does: "creates the chains KUBE-FIREWALL and KUBE-KUBELET-CANARY, which drop packets from outside to 127.0.0.0/8"},
		{Path: "iptablesMasqueradeBit", Support: Warned, Does: "nothing: Kubernetes has deprecated it",
			Limit: "Kubernetes has deprecated the field, which has no effect"},
		{Path: "iptablesDropBit", Support: Warned, Does: "nothing: Kubernetes has deprecated it",
			Limit: "Kubernetes has deprecated the field, which has no effect"},
	}
}

// shutdownAndTracingFields are the fields of the machine's shutdown and of traces.
func shutdownAndTracingFields() []Field {
	return []Field{
		{Path: "shutdownGracePeriod", Support: Honoured,
			Does: "delays the shutdown of a machine with systemd until Pods have ended, for at most that long; 0s: it does not wait"},
		{Path: "shutdownGracePeriodCriticalPods", Support: Honoured, Does: "the last part of it, for critical Pods"},
		{Path: "shutdownGracePeriodByPodPriority", Support: Honoured, Does: "in place of both, grace periods by the priority of Pods, the lowest first"},
		{Path: "tracing.endpoint", Support: Honoured, Does: "where spans are sent over OTLP/gRPC; localhost:4317 if tracing has no endpoint"},
		{Path: "tracing.samplingRatePerMillion", Support: Honoured, Does: "how many of a million requests are traced; those whose caller traces them always are"},
	}
}
