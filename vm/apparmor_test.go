//go:build vm

package vm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAppArmorConfinesPods runs Pods with a profile of their own, with that of the runtime, and without one, with each shim: each may do
// what its profile allows and nothing more, and so may a command in it. A Pod whose profile is not loaded runs as soon as it is.
func TestAppArmorConfinesPods(t *testing.T) {
	for _, shim := range []string{berthShim, "containerd-shim-runc-v2"} {
		t.Run(shim, func(t *testing.T) {
			m := startStandaloneKubeletOn(t, shim, "apparmor", "")
			output(t, m, "mkdir -p /var/log/pods-ends/denied && apparmor_parser -a "+share+"/guest/apparmor.profile")
			addAppArmorPod(t, m, "default", "{type: RuntimeDefault}")
			addAppArmorPod(t, m, "localhost", "{type: Localhost, localhostProfile: vm-test}")
			addAppArmorPod(t, m, "missing", "{type: Localhost, localhostProfile: vm-missing}")

			for _, pod := range []struct{ name, profile, may string }{
				{"unconfined", "unconfined", "write allowed, mount allowed"},
				{"default", "cri-containerd.apparmor.d (enforce)", "write allowed, mount denied"},
				{"localhost", "vm-test (enforce)", "write denied, mount allowed"},
			} {
				waitContainer(t, m, pod.name, func(s containerStatus) bool { return s.Ready })
				require.Equal(t, pod.may, waitFor(t, m, 60, "grep . /var/log/pods-ends/"+pod.name), pod.name)
				for _, process := range []string{"1", "self"} {
					label := runInContainer(t, m, pod.name, "/busybox cat /proc/"+process+"/attr/current")
					require.Equal(t, pod.profile, profileIn(label), pod.name)
				}
			}
			waitFor(t, m, 120, kubeletRequest("GET", "/pods")+" | grep -o 'apparmor profile not found vm-missing'")
			require.Empty(t, output(t, m, "cat /var/log/pods-ends/missing 2>/dev/null || true"))
			output(t, m, "sed s/vm-test/vm-missing/ "+share+"/guest/apparmor.profile | apparmor_parser -a")
			waitContainer(t, m, "missing", func(s containerStatus) bool { return s.Ready })

			output(t, m, "rm /etc/kubernetes/manifests/*")
			waitFor(t, m, 180, "! pgrep -x containerd-shim") // the profiles let the runtime end the containers
		})
	}
}

// profileIn returns the profile that a process's label has, without "unconfined" beside it: Ubuntu 26.04 names both if a
// process without privileges has taken the profile, which changes nothing (sysctl kernel.apparmor_restrict_unprivileged_unconfined).
func profileIn(label string) string {
	return strings.NewReplacer("//&unconfined", "", "unconfined//&", "").Replace(label)
}

// addAppArmorPod adds a static Pod with that profile.
func addAppArmorPod(t *testing.T, m *Machine, name, profile string) {
	t.Helper()
	output(t, m, "sed "+quote("s/unconfined/"+name+"/g;s/{type: Unconfined}/"+profile+"/")+" "+share+
		"/guest/apparmor/unconfined.yaml > /tmp/pod.yaml && mv /tmp/pod.yaml /etc/kubernetes/manifests/"+name+".yaml")
}
