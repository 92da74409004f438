package leader

import (
	"os"
	"strings"
)

// serviceAccountNamespace is the file with the namespace of the Pod that this process runs in.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// OwnNamespace returns the namespace of the Pod that this process runs in: POD_NAMESPACE, or that of its service account.
// Outside of a Pod it returns "default".
func OwnNamespace() string {
	if namespace := os.Getenv("POD_NAMESPACE"); namespace != "" {
		return namespace
	}
	if data, err := os.ReadFile(serviceAccountNamespace); err == nil {
		if namespace := strings.TrimSpace(string(data)); namespace != "" {
			return namespace
		}
	}
	return "default"
}
