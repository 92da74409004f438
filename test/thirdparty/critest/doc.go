// Package critest requires the package of critest, so that its module keeps the requirement.
package critest

import _ "sigs.k8s.io/cri-tools/pkg/validate"
