package pullrecords

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// policy decides which present images require credentials.
type policy struct {
	kind     kubeletconfig.ImagePullCredentialsVerificationPolicy
	names    []string
	prefixes []string // each ends with a slash
}

// ValidatePolicy returns an error that names what is wrong with a policy and its allowlist.
func ValidatePolicy(kind kubeletconfig.ImagePullCredentialsVerificationPolicy, allowed []string) error {
	_, err := newPolicy(kind, allowed)
	return err
}

// newPolicy parses a policy and its allowlist. An error names the invalid entry.
func newPolicy(kind kubeletconfig.ImagePullCredentialsVerificationPolicy, allowed []string) (policy, error) {
	p := policy{kind: kind}
	switch kind {
	case "":
		p.kind = kubeletconfig.NeverVerifyPreloadedImages
	case kubeletconfig.NeverVerify, kubeletconfig.NeverVerifyPreloadedImages, kubeletconfig.NeverVerifyAllowlistedImages,
		kubeletconfig.AlwaysVerify:
	default:
		return p, fmt.Errorf("imagePullCredentialsVerificationPolicy %q: want NeverVerify, NeverVerifyPreloadedImages, "+
			"NeverVerifyAllowlistedImages or AlwaysVerify", kind)
	}
	if len(allowed) > 0 && p.kind != kubeletconfig.NeverVerifyAllowlistedImages {
		return p, fmt.Errorf("preloadedImagesVerificationAllowlist: only imagePullCredentialsVerificationPolicy %s has one, "+
			"not %s", kubeletconfig.NeverVerifyAllowlistedImages, p.kind)
	}
	for _, entry := range allowed {
		name, wild := strings.CutSuffix(entry, "/*")
		plain, err := normalizeEntry(name, wild)
		if err != nil {
			return p, fmt.Errorf("preloadedImagesVerificationAllowlist: %q: %w", entry, err)
		}
		if wild {
			p.prefixes = append(p.prefixes, plain+"/")
		} else {
			p.names = append(p.names, plain)
		}
	}
	return p, nil
}

// normalizeEntry returns the full name of an allowlist entry. Before a wildcard there may be a registry alone.
func normalizeEntry(name string, wild bool) (string, error) {
	if strings.Contains(name, "*") {
		return "", fmt.Errorf(`a wildcard is the whole last part of a name: "/*"`)
	}
	if wild && !strings.Contains(name, "/") {
		probe, err := reference.ParseNormalizedNamed(name + "/x")
		if err != nil {
			return "", fmt.Errorf("want a registry's name before the wildcard: %w", err)
		}
		return strings.TrimSuffix(probe.Name(), "/x"), nil
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", fmt.Errorf("want an image's name: %w", err)
	}
	if !reference.IsNameOnly(named) {
		return "", fmt.Errorf("want an image's name without tag and digest")
	}
	return named.Name(), nil
}

// requiresCredentials reports whether the Pod needs credentials for the image; pulled is whether a kubelet has pulled
// it, now or earlier.
func (p policy) requiresCredentials(name string, pulled bool) bool {
	switch p.kind {
	case kubeletconfig.NeverVerify:
		return false
	case kubeletconfig.NeverVerifyPreloadedImages:
		return pulled
	case kubeletconfig.NeverVerifyAllowlistedImages:
		return pulled || !p.isAllowlisted(name)
	}
	return true
}

// isAllowlisted reports whether the allowlist contains the image.
func (p policy) isAllowlisted(name string) bool {
	return slices.Contains(p.names, name) ||
		slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
