package main

import (
	"fmt"
	"strings"

	"github.com/berth-dev/berth/up"
)

// leftoverDiagnosis describes the leftovers of one dead cluster.
func leftoverDiagnosis(r *up.Leftover) diagnosis {
	var parts []string
	count := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	count(len(r.Shims), "container shims")
	count(len(r.Mounts), "mounts")
	count(len(r.Cgroups), "cgroups")
	count(len(r.Disks), "loop devices")
	rules := len(r.Rules)
	if r.Accepts {
		rules++
	}
	count(rules, "firewall rules")
	count(r.Tables, "nftables tables berth"+r.ID)
	if r.Bridge {
		parts = append(parts, "bridge berth"+r.ID)
	}
	if r.RunDir != "" {
		parts = append(parts, r.RunDir)
	}
	found := strings.Join(parts, ", ")
	if r.DataDir != "" {
		found += " of the cluster in " + r.DataDir
	}
	return diagnosis{Name: "cluster " + r.ID, Severity: severityError, Found: found,
		Remedy:       "run `berth up` on its data directory to take it over, or remove it with berth doctor --fix (its data directory stays)",
		confirmation: "Remove all of that? Its data directory stays.", fix: r.Remove}
}
