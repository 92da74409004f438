//go:build tools

package upstream

import _ "k8s.io/kubernetes/cmd/kubelet"
