// Package examples holds the manifests that a newcomer tries first.
package examples

import _ "embed" // for the manifests

// Demo is a Deployment with a claim, whose page counts its visits on the volume.
//
//go:embed demo.yaml
var Demo []byte
