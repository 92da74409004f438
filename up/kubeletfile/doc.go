// Package kubeletfile reads the KubeletConfiguration that a user gives `berth up` or `berth node`: the fields for which these have no
// flags, and which they do not decide themselves.
package kubeletfile
