// Package critest makes the module one that go mod tidy keeps.
package critest

import _ "sigs.k8s.io/cri-tools/pkg/validate"
