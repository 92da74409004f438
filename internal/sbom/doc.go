// Package sbom lists what programs are made of, from the build information that Go puts into each, as a software bill of materials in the
// format SPDX 2.3 (JSON).
package sbom
