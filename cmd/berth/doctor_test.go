package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/kernelmodule"
	"github.com/berth-dev/berth/up"
)

func TestLeftoversAreWorded(t *testing.T) {
	d := leftoverDiagnosis(&up.Leftover{ID: "0123abcd", Shims: []int{100}, Cgroups: []string{"/sys/fs/cgroup/berth-0123abcd"}, Bridge: true})
	require.Equal(t, severityError, d.Severity)
	require.Equal(t, "1 container shims, 1 cgroups, bridge berth0123abcd", d.Found)
	require.NotEmpty(t, d.confirmation, "--fix asks first")

	d = leftoverDiagnosis(&up.Leftover{ID: "0123abcd", DataDir: "/data", Mounts: []string{"/data/kubelet/a"}, Disks: []string{"/data/disks/b"},
		Rules: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}})
	require.Equal(t, "1 mounts, 1 loop devices, 1 firewall rules of the cluster in /data", d.Found)
}

// TestAFirewallThatDropsForwardedPacketsIsDiagnosed runs a program in the place of iptables.
func TestAFirewallThatDropsForwardedPacketsIsDiagnosed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	require.Equal(t, "not checked: it needs root and iptables", checkForwarding(t.Context()).Found)
	for rules, want := range map[string]severity{
		"-P FORWARD ACCEPT": severityOK,
		"-P FORWARD DROP":   severityWarning,
		"-P FORWARD DROP\n-A FORWARD -i berth+ -j ACCEPT":    severityOK,
		"-P FORWARD DROP\n-A FORWARD -i docker0 -j ACCEPT\n": severityWarning,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "iptables"), []byte("#!/bin/sh\nprintf '%b' '"+rules+"'\n"), 0o755))
		d := checkForwarding(t.Context())
		require.Equal(t, want, d.Severity, rules)
		require.Equal(t, want != severityOK, d.Remedy != "")
	}
}

// TestMissingModulesAreDiagnosed runs a modprobe that could load one module.
func TestMissingModulesAreDiagnosed(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = --dry-run ] && [ \"$2\" = loadable ]\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "modprobe"), []byte(script), 0o755))
	t.Setenv("PATH", dir)
	module := func(name, feature string) kernelmodule.Module {
		return kernelmodule.Module{Name: name, Feature: filepath.Join(dir, feature), Without: "nothing works"}
	}
	present, loadable, absent := module("present", "modprobe"), module("loadable", "none"), module("absent", "none")
	check := func(severity severity, found string, modules ...kernelmodule.Module) {
		t.Helper()
		d := checkModules(t.Context(), modules)
		require.Equal(t, severity, d.Severity)
		require.Equal(t, found, d.Found)
		require.Equal(t, severity != severityOK, d.Remedy != "")
	}
	check(severityOK, "all found", present)
	check(severityOK, "loadable: not loaded; `berth up` loads them", present, loadable)
	check(severityWarning, "without absent nothing works (modprobe absent: exit status 1)", present, absent)
	check(severityWarning, "without absent nothing works (modprobe absent: exit status 1); loadable: not loaded; `berth up` loads them",
		loadable, absent)
}
