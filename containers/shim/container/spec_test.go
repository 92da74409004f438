package container

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestSandboxHasOnlyTheMountsThatItsProcessNeeds(t *testing.T) {
	all := []string{"/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys", "/dev/shm", "/etc/resolv.conf"}
	mounts := func(kind string) []string {
		spec := &specs.Spec{Annotations: map[string]string{containerType: kind}}
		for _, target := range all {
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: target})
		}
		trimSandbox(spec)
		var left []string
		for _, m := range spec.Mounts {
			left = append(left, m.Destination)
		}
		return left
	}
	if left := mounts("sandbox"); !slices.Equal(left, []string{"/proc", "/dev"}) {
		t.Errorf("a sandbox has the mounts %q", left)
	}
	for _, kind := range []string{"container", ""} {
		if left := mounts(kind); !slices.Equal(left, all) {
			t.Errorf("a container of kind %q has the mounts %q", kind, left)
		}
	}
}
