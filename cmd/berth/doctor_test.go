package main

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/kernelmodule"
	"github.com/berth-dev/berth/internal/testnet"
	"github.com/berth-dev/berth/up"
)

func TestLeftoversAreWorded(t *testing.T) {
	d := leftoverDiagnosis(&up.Leftover{ID: "0123abcd", Shims: []int{100}, Cgroups: []string{"/sys/fs/cgroup/berth-0123abcd"}, Bridge: true})
	require.Equal(t, severityError, d.Severity)
	require.Equal(t, "1 container shims, 1 cgroups, bridge berth0123abcd", d.Found)
	require.NotEmpty(t, d.confirmation, "--fix asks first")

	d = leftoverDiagnosis(&up.Leftover{ID: "0123abcd", DataDir: "/data", Mounts: []string{"/data/kubelet/a"}, Disks: []string{"/data/disks/b"},
		Rules: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Accepts: true})
	require.Equal(t, "1 mounts, 1 loop devices, 2 firewall rules of the cluster in /data", d.Found)
}

// TestAFirewallThatDropsPacketsOfPodsIsDiagnosed has the real nft, in a network of its own.
func TestAFirewallThatDropsPacketsOfPodsIsDiagnosed(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	if testnet.RunInNew(t) {
		return
	}
	for name, test := range map[string]struct {
		tables, remedy string
	}{
		"no firewall":        {"", ""},
		"Docker":             {"table ip filter { chain FORWARD { type filter hook forward priority filter; policy drop; }; }", ""},
		"accepting":          {"table inet filter { chain forward { type filter hook forward priority filter; policy accept; }; }", ""},
		"on the way out":     {"table inet filter { chain output { type filter hook output priority filter; policy drop; }; }", ""},
		"dropping":           {"table inet filter { chain forward { type filter hook forward priority filter; policy drop; }; }", "nft add rule inet filter forward iifname '\"berth*\"' accept; nft add rule inet filter forward oifname '\"berth*\"' accept"},
		"named as by Docker": {"table inet own { chain FORWARD { type filter hook forward priority filter; policy drop; }; }", "nft add rule inet own FORWARD iifname '\"berth*\"' accept; nft add rule inet own FORWARD oifname '\"berth*\"' accept"},
		"for this machine":   {"table inet own { chain to-us { type filter hook input priority 5; policy drop; }; }", "nft add rule inet own to-us iifname '\"berth*\"' meta l4proto '{ tcp, udp }' th dport '{ 53, 6444, 10250 }' accept"},
		"rejecting at the end": {"table inet filter { chain forward { type filter hook forward priority filter; policy accept; ip daddr 192.0.2.1 drop; counter log reject; }; }",
			"nft insert rule inet filter forward handle 3 iifname '\"berth*\"' accept; nft insert rule inet filter forward handle 3 oifname '\"berth*\"' accept"},
		"dropping in another chain": {"table inet filter { chain rest { drop; }; chain forward { type filter hook forward priority filter; policy accept; ip daddr 192.0.2.1 drop; }; }", ""},
		"of bridges":                {"table bridge filter { chain forward { type filter hook forward priority filter; policy drop; }; }", "nft add rule bridge filter forward ibrname '\"berth*\"' accept"},
		"to bridges":                {"table bridge filter { chain input { type filter hook input priority filter; policy drop; }; }", "nft add rule bridge filter input ibrname '\"berth*\"' accept"},
		"firewalld":                 {"table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy accept; reject; }; }", "firewall-cmd --permanent --zone=trusted --add-interface=berth+ && firewall-cmd --reload"},
		"firewalld with zone":       {`table inet firewalld { chain zones { iifname "berth*" accept; }; chain filter_FORWARD { type filter hook forward priority 10; policy accept; jump zones; reject; }; }`, ""},
	} {
		apply := func(command, input string) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
			cmd.Stdin = strings.NewReader(input)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s: %s", name, command, out)
		}
		apply("nft -f -", "flush ruleset\n"+test.tables+"\n")
		d := checkForwarding(t.Context(), 6444)
		require.Equal(t, test.remedy, d.Remedy, name)
		require.Equal(t, test.remedy != "", d.Severity == severityWarning, name)
		if strings.HasPrefix(test.remedy, "nft ") && !strings.Contains(test.remedy, "ibrname") { // which some kernels lack
			apply(test.remedy, "")
			require.Equal(t, severityOK, checkForwarding(t.Context(), 6444).Severity, "after the remedy of %s", name)
			list, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").Output()
			require.NoError(t, err)
			_, behind, _ := strings.Cut(string(list), "reject")
			require.NotContains(t, behind, "accept", "the remedy of %s has an effect", name)
		}
	}
	t.Setenv("PATH", t.TempDir())
	require.Equal(t, "not checked: it needs root and nft", checkForwarding(t.Context(), 6444).Found)
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
