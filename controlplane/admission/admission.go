// Package admission configures the admission plugins of the API server that protect the cluster from its users.
package admission

import (
	"fmt"

	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/config"
)

// Levels of the Pod security standards for namespaces without labels of their own. By default nothing is refused: what a Pod needs beyond
// the baseline is only recorded in the audit log. A hardened cluster refuses what is not restricted, except in kube-system.
const (
	openEnforce, openReport         = "privileged", "baseline"
	hardenedEnforce, hardenedReport = "restricted", "restricted"
)

// Events are dropped beyond these limits, which the recorders of all components together do not reach: a flood of Events neither fills
// the store nor delays other requests. The start of 1,000 Pods in one namespace has some 5,000 Events.
const (
	eventsPerSecond = 500
	eventBurst      = 10000
	eventCache      = 1000 // namespaces and users whose rates are remembered
)

const configuration = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits:
    - {type: Namespace, qps: %[1]d, burst: %[2]d, cacheSize: %[3]d}
    - {type: User, qps: %[1]d, burst: %[2]d, cacheSize: %[3]d}
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults:
      enforce: %[4]s
      enforce-version: latest
      audit: %[5]s
      audit-version: latest
      warn: %[6]s
      warn-version: latest
    exemptions:
      namespaces: [kube-system]
`

// Prepare writes the plugins' configuration.
func Prepare(c *config.Config) error {
	enforce, report, warn := openEnforce, openReport, openEnforce
	if c.Hardened {
		enforce, report, warn = hardenedEnforce, hardenedReport, hardenedReport
	}
	text := fmt.Sprintf(configuration, eventsPerSecond, eventBurst, eventCache, enforce, report, warn)
	return atomicfile.Write(c.AdmissionConfigFile(), []byte(text))
}

// Args are the flags of kube-apiserver that turn the plugins on, beside those that are on by default, such as PodSecurity.
func Args(c *config.Config) []string {
	plugins := "NodeRestriction,EventRateLimit"
	if c.Hardened {
		// Upstream's suite uses externalIPs, and so may a user's manifests: not by default.
		plugins += ",DenyServiceExternalIPs"
	}
	args := []string{"--enable-admission-plugins=" + plugins, "--admission-control-config-file=" + c.AdmissionConfigFile()}
	if c.APIOnly { // no controller makes the service accounts that Pods would need
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return args
}
