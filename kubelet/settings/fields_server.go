package settings

import (
	"slices"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// serverFields are the fields of the kubelet's own server.
func serverFields() []Field {
	return slices.Concat(listenFields(), accessFields(), handlerFields())
}

func listenFields() []Field {
	return []Field{
		{Path: "enableServer", Flag: "enable-server", Support: Honoured,
			Does: "serves the kubelet's API over TLS; false: only /healthz and the read-only port, if they are configured"},
		{Path: "address", Flag: "address", Support: Honoured,
			Does: "the IP address on which the kubelet's API is served; 0.0.0.0 and :: are all addresses of the machine"},
		{Path: "port", Flag: "port", Support: Honoured, Does: "the port of the kubelet's API, which the Node names"},
		{Path: "readOnlyPort", Flag: "read-only-port", Support: Honoured,
			Does: "the port on which health, metrics, statistics and the list of Pods are served without TLS to anyone; 0: none"},
		{Path: "healthzPort", Flag: "healthz-port", Support: Honoured, Does: "the port of /healthz without TLS; 0: none"},
		{Path: "healthzBindAddress", Flag: "healthz-bind-address", Support: Honoured,
			Does: "the IP address on which /healthz is served without TLS"},
		{Path: "tlsCertFile", Flag: "tls-cert-file", Support: Honoured,
			Does: "the serving certificate, with intermediate ones behind it; without one the kubelet signs its own below --cert-dir"},
		{Path: "tlsPrivateKeyFile", Flag: "tls-private-key-file", Support: Honoured, Does: "the key of the serving certificate"},
		{Path: "tlsCipherSuites", Flag: "tls-cipher-suites", Support: Honoured,
			Does: "the cipher suites of TLS 1.2, by the names of Go's crypto/tls; those of TLS 1.3 are not configurable"},
		{Path: "tlsCurvePreferences", Support: Honoured, Does: "the key exchanges of TLS, by their numbers in Go's crypto/tls"},
		{Path: "tlsMinVersion", Flag: "tls-min-version", Support: Limited,
			Does:  "the lowest version of TLS: VersionTLS12 (the default) or VersionTLS13",
			Limit: "want VersionTLS12 or VersionTLS13: earlier versions of TLS are broken",
			Limits: func(c *Configuration) bool {
				return c.TLSMinVersion == "VersionTLS10" || c.TLSMinVersion == "VersionTLS11"
			}},
		{Path: "rotateCertificates", Flag: "rotate-certificates", Support: Honoured,
			Does: "requests the node's client certificate from the cluster and renews it; the first one is that of the kubeconfig, or is " +
				"requested with --bootstrap-kubeconfig"},
		{Path: "serverTLSBootstrap", Flag: "rotate-server-certificates", Support: Honoured,
			Does: "requests the serving certificate from the cluster and renews it; an administrator approves the requests"},
	}
}

func accessFields() []Field {
	return []Field{
		{Path: "authentication.x509.clientCAFile", Flag: "client-ca-file", Support: Honoured,
			Does: "the CAs of the client certificates that are accepted"},
		{Path: "authentication.webhook.enabled", Flag: "authentication-token-webhook", Support: Honoured,
			Does: "has the API server review bearer tokens"},
		{Path: "authentication.webhook.cacheTTL", Flag: "authentication-token-webhook-cache-ttl", Support: Honoured,
			Does: "how long a review of a token is valid"},
		{Path: "authentication.anonymous.enabled", Flag: "anonymous-auth", Support: Honoured,
			Does: "accepts clients without credentials, as the user system:anonymous"},
		{Path: "authorization.mode", Flag: "authorization-mode", Support: Honoured,
			Does: "who may use the kubelet's API: Webhook (the API server decides) or AlwaysAllow (all that are authenticated)"},
		{Path: "authorization.webhook.cacheAuthorizedTTL", Flag: "authorization-webhook-cache-authorized-ttl", Support: Honoured,
			Does: "how long a permission is valid"},
		{Path: "authorization.webhook.cacheUnauthorizedTTL", Flag: "authorization-webhook-cache-unauthorized-ttl", Support: Honoured,
			Does: "how long a denial is valid"},
	}
}

func handlerFields() []Field {
	return []Field{
		{Path: "enableDebuggingHandlers", Flag: "enable-debugging-handlers", Support: Honoured,
			Does: "serves exec, attach, port-forward, run and the logs of containers"},
		{Path: "enableContentionProfiling", Flag: "contention-profiling", Support: Honoured,
			Does: "records where goroutines block, for /debug/pprof/block"},
		{Path: "enableProfilingHandler", Support: Honoured, Does: "serves Go's profiler at /debug/pprof/"},
		{Path: "enableDebugFlagsHandler", Support: Honoured, Does: "lets clients change the log level at /debug/flags/v"},
		{Path: "enableSystemLogHandler", Support: Honoured, Does: "serves the files of /var/log at /logs/"},
		{Path: "enableSystemLogQuery", Support: Honoured, Does: "lets clients query the machine's journal by service at /logs/?query=NAME"},
		{Path: "streamingConnectionIdleTimeout", Flag: "streaming-connection-idle-timeout", Support: Honoured,
			Does: "closes a stream to a container (exec, attach, port-forward) that transfers nothing for that long"},
		{Path: "showHiddenMetricsForVersion", Support: Moot,
			Does: "shows metrics that the previous minor version has deprecated; this kubelet hides none"},
	}
}

// watches reports whether changes of ConfigMaps and Secrets are watched for, as is always done.
func watches(c *Configuration) bool {
	return c.ConfigMapAndSecretChangeDetectionStrategy == kubeletconfig.WatchChangeDetectionStrategy
}
