package apiserver_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/controlplane/apiserver"
	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/controllermanager"
)

// flags are the last values of flags.
type flags map[string]string

func parse(args []string) flags {
	found := flags{}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		found[name] = value
	}
	return found
}

func (f flags) atLeast(name string, least int) bool {
	n, err := strconv.Atoi(f[name])
	return err == nil && n >= least
}

func (f flags) has(name, item string) bool { return slices.Contains(strings.Split(f[name], ","), item) }

// TestBenchmark checks the items of the CIS Kubernetes Benchmark that are about flags. docs/security.md lists those that do not hold.
func TestBenchmark(t *testing.T) {
	for _, hardened := range []bool{false, true} {
		c := &config.Config{DataDir: "/data", RunDir: "/run", BindAddresses: []string{"127.0.0.1"}, ServiceCIDR: "10.96.0.0/16",
			PodCIDR: "10.88.0.0/16", NodeName: "n", Hardened: hardened}
		server, manager := parse(apiserver.Args(c)), parse(controllermanager.Args(c))
		items := map[string]bool{
			"1.2.1 anonymous requests are limited by a file": server["authentication-config"] != "" && server["anonymous-auth"] == "",
			"1.2.2 no token-auth-file":                       server["token-auth-file"] == "",
			"1.2.3 DenyServiceExternalIPs":                   server.has("enable-admission-plugins", "DenyServiceExternalIPs") == hardened,
			"1.2.4 kubelet-client-certificate":               server["kubelet-client-certificate"] != "" && server["kubelet-client-key"] != "",
			"1.2.5 kubelet-certificate-authority":            server["kubelet-certificate-authority"] != "",
			"1.2.6 to 1.2.8 authorization-mode":              server["authorization-mode"] == "Node,RBAC",
			"1.2.9 EventRateLimit":                           server.has("enable-admission-plugins", "EventRateLimit"),
			"1.2.10 no AlwaysAdmit":                          !server.has("enable-admission-plugins", "AlwaysAdmit"),
			"1.2.12, 1.2.13 defaults are not disabled":       server["disable-admission-plugins"] == "",
			"1.2.14 NodeRestriction":                         server.has("enable-admission-plugins", "NodeRestriction"),
			"1.2.15 profiling":                               server["profiling"] == "false",
			"1.2.16 audit-log-path":                          server["audit-log-path"] != "" && server["audit-policy-file"] != "",
			"1.2.17 audit-log-maxage":                        server.atLeast("audit-log-maxage", 30),
			"1.2.18 audit-log-maxbackup":                     server.atLeast("audit-log-maxbackup", 10),
			"1.2.19 audit-log-maxsize":                       server.atLeast("audit-log-maxsize", 100),
			"1.2.20 request-timeout":                         server["request-timeout"] == "",
			"1.2.21 service-account-lookup":                  server["service-account-lookup"] == "",
			"1.2.22 service-account-key-file":                server["service-account-key-file"] != "",
			"1.2.23, 1.2.26 etcd is a socket":                strings.HasPrefix(server["etcd-servers"], "unix://"),
			"1.2.24 TLS":                                     server["tls-cert-file"] != "" && server["tls-private-key-file"] != "",
			"1.2.25 client-ca-file":                          server["client-ca-file"] != "",
			"1.2.27, 1.2.28 encryption-provider-config":      server["encryption-provider-config"] != "",
			"1.2.29 ciphers": server["tls-cipher-suites"] != "" && !strings.Contains(server["tls-cipher-suites"], "CBC") &&
				!strings.Contains(server["tls-cipher-suites"], "TLS_RSA"),
			"1.3.2 profiling":                        manager["profiling"] == "false",
			"1.3.3 use-service-account-credentials":  manager["use-service-account-credentials"] == "true",
			"1.3.4 service-account-private-key-file": manager["service-account-private-key-file"] != "",
			"1.3.5 root-ca-file":                     manager["root-ca-file"] != "",
			"1.3.6 RotateKubeletServerCertificate":   !strings.Contains(manager["feature-gates"], "RotateKubeletServerCertificate=false"),
			"1.3.7 no port":                          manager["secure-port"] == "0",
		}
		for item, holds := range items {
			require.True(t, holds, "%s (hardened: %t)", item, hardened)
		}
	}
}
