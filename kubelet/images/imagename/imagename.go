// Package imagename normalizes the names of container images.
package imagename

import (
	"strings"

	"github.com/distribution/reference"
)

// Full returns the name as the runtime lists it: with its registry, and with its digest or else its tag, "latest" if it
// has neither. A name with a tag and a digest yields the digest alone: the runtime ignores the tag. An id, and a text that
// is no name, are returned unchanged.
func Full(name string) string {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil || IsID(name) {
		return name
	}
	if digested, ok := named.(reference.Canonical); ok {
		return named.Name() + "@" + digested.Digest().String()
	}
	return reference.TagNameOnly(named).String()
}

// Repository returns the name with its registry and without tag and digest. It is empty for an id, and for a text that is
// no name.
func Repository(name string) string {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil || IsID(name) {
		return ""
	}
	return named.Name()
}

// IsID reports whether the image is named by its id. A slash after the prefix makes it the name of a registry with a port.
func IsID(name string) bool {
	return strings.HasPrefix(name, "sha256:") && !strings.Contains(name, "/")
}
