// Package audit configures the API server's audit log: which requests it records, where, and how large it becomes.
//
// No rule records the body of a request or of a response, so that no Secret, token or environment variable gets into the log.
package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/config"
)

// Bounds of the log: a file is rotated when it has maxSizeMiB; as many older ones as maxFiles stay, compressed, for at most maxDays.
const (
	maxSizeMiB = 100
	maxFiles   = 10
	maxDays    = 30
)

// Policy says which requests are recorded. The first rule that matches decides. What components do all the time without a person's
// request is not recorded: reads, Leases, Events and requests for the API's own description.
const Policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [system:apiserver]
- level: None
  nonResourceURLs: [/livez*, /readyz*, /healthz*, /version, /openapi*, /api, /api/*, /apis, /apis/*]
- level: None
  resources:
  - group: coordination.k8s.io
    resources: [leases]
  - group: ""
    resources: [events]
  - group: events.k8s.io
    resources: [events]
# Who read or changed a Secret is recorded of components, too.
- level: Metadata
  resources:
  - group: ""
    resources: [secrets]
- level: None
  users: [system:kube-scheduler, system:kube-controller-manager, system:kube-proxy]
  verbs: [get, list, watch]
- level: None
  userGroups: [system:nodes, system:serviceaccounts:kube-system, berth:components]
  verbs: [get, list, watch]
- level: Metadata
`

// Prepare writes the policy and makes the directory of the log. What is in the log's place and is no file is set aside.
func Prepare(c *config.Config) error {
	if err := atomicfile.Write(c.AuditPolicyFile(), []byte(Policy)); err != nil {
		return err
	}
	path := c.AuditLogFile()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("create the directory of the audit log: %w", err)
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		atomicfile.SetAside(path, errors.New("not a regular file"), "the audit log begins again")
	}
	return nil
}

// Args are the flags of kube-apiserver that turn the log on.
func Args(c *config.Config) []string {
	return []string{
		"--audit-policy-file=" + c.AuditPolicyFile(),
		"--audit-log-path=" + c.AuditLogFile(),
		"--audit-log-maxsize=" + strconv.Itoa(maxSizeMiB),
		"--audit-log-maxbackup=" + strconv.Itoa(maxFiles),
		"--audit-log-maxage=" + strconv.Itoa(maxDays),
		"--audit-log-compress=true",
	}
}
