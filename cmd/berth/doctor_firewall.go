package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// berthInterfaces is how nftables names the network interfaces of all clusters.
const berthInterfaces = `"berth*"`

func checkFirewall() diagnosis {
	for _, name := range []string{"iptables", "nft"} {
		if path, err := exec.LookPath(name); err == nil {
			return diagnosis{Name: "firewall", Severity: severityOK, Found: path}
		}
	}
	return diagnosis{Name: "firewall", Severity: severityError, Found: "neither iptables nor nft found; Pod networking needs one of them",
		Remedy: "apt-get install iptables"}
}

// checkForwarding checks whether the firewall drops what Pods send in a way that `berth up` cannot prevent: it has rules in the chains of
// iptables, where Docker and ufw drop packets, but not in those that the user or another program made in nftables. apiPort is the port of
// the cluster's API server.
func checkForwarding(ctx context.Context, apiPort int) diagnosis {
	d := diagnosis{Name: "forwarding", Severity: severityOK, Found: "the firewall lets Pods reach each other and other networks"}
	nft, err := exec.LookPath("nft")
	if err != nil || os.Geteuid() != 0 {
		d.Found = "not checked: it needs root and nft"
		return d
	}
	all, err := listNFT(ctx, nft, "chains")
	if err != nil {
		d.Severity, d.Found = severityWarning, err.Error()
		return d
	}
	for _, c := range all.chains {
		if !c.isChecked() {
			continue
		}
		table, err := listNFT(ctx, nft, "table", c.Family, c.Table) // firewalld has the rules of zones in chains of their own
		if err != nil {
			d.Severity, d.Found = severityWarning, err.Error()
			return d
		}
		// A rule of the user that names the clusters' interfaces is taken for the remedy.
		if remedy := c.remedy(table.rules, apiPort); remedy != "" && !strings.Contains(table.text, `"berth`) {
			d.Severity, d.Remedy = severityWarning, remedy
			d.Found = fmt.Sprintf("the chain %s of the firewall's table %s %s drops what no rule accepts, also what Pods send", c.Name, c.Family, c.Table)
			return d
		}
	}
	return d
}

// nftList is a list of nftables.
type nftList struct {
	text   string
	chains []nftChain
	rules  []nftRule
}

// nftChain is a chain of nftables.
type nftChain struct {
	Family, Table, Name, Hook, Policy string
}

// nftRule is a rule of a chain.
type nftRule struct {
	Chain  string
	Handle int
	// Expr are the rule's parts, each with its kind as the only key.
	Expr []map[string]json.RawMessage
}

// listNFT lists what the arguments of `nft list` name.
func listNFT(ctx context.Context, nft string, args ...string) (nftList, error) {
	var all nftList
	out, err := exec.CommandContext(ctx, nft, append([]string{"-j", "list"}, args...)...).Output()
	var listed struct {
		Nftables []struct {
			Chain *nftChain
			Rule  *nftRule
		}
	}
	if err == nil {
		err = json.Unmarshal(out, &listed)
	}
	if err != nil {
		return all, fmt.Errorf("list the firewall's chains: nft -j list %s: %w", strings.Join(args, " "), err)
	}
	all.text = string(out)
	for _, entry := range listed.Nftables {
		if entry.Chain != nil {
			all.chains = append(all.chains, *entry.Chain)
		}
		if entry.Rule != nil {
			all.rules = append(all.rules, *entry.Rule)
		}
	}
	return all, nil
}

// dropsRest reports whether the rule drops or rejects whatever reaches it.
func (r nftRule) dropsRest() bool {
	for _, part := range r.Expr {
		for kind := range part {
			switch kind {
			case "drop", "reject":
				return true
			case "counter", "log":
			default:
				return false
			}
		}
	}
	return false
}

// isChecked reports whether packets of Pods pass the chain, and `berth up` has no rule for them there as in those of iptables.
func (c nftChain) isChecked() bool {
	isOfIPTables := (c.Family == "ip" || c.Family == "ip6") && c.Table == "filter" && c.Name == strings.ToUpper(c.Name)
	return (c.Hook == "forward" || c.Hook == "input") && !isOfIPTables
}

// remedy is how the user lets the packets of Pods pass the chain, empty if it does not drop them. rules are those of its table.
func (c nftChain) remedy(rules []nftRule, apiPort int) string {
	if c.Table == "firewalld" { // which rejects by a last rule, but has commands of its own
		if c.Name == "filter_FORWARD" {
			return "firewall-cmd --permanent --zone=trusted --add-interface=berth+ && firewall-cmd --reload"
		}
		return ""
	}
	add, where := "add", ""
	if i := slices.IndexFunc(rules, func(r nftRule) bool { return r.Chain == c.Name && r.dropsRest() }); i >= 0 {
		add, where = "insert", fmt.Sprintf(" handle %d", rules[i].Handle) // behind it they would have no effect
	} else if c.Policy != "drop" {
		return ""
	}
	var matches []string
	switch {
	case c.Family == "bridge": // its interfaces are the bridge's ports, and what the machine only forwards is its input, too
		matches = []string{"ibrname '" + berthInterfaces + "'"}
	case c.Hook == "forward":
		matches = []string{"iifname '" + berthInterfaces + "'", "oifname '" + berthInterfaces + "'"}
	default:
		// The cluster's DNS, the API server and the kubelet.
		matches = []string{fmt.Sprintf("iifname '%s' meta l4proto '{ tcp, udp }' th dport '{ 53, %d, 10250 }'", berthInterfaces, apiPort)}
	}
	for i, match := range matches {
		matches[i] = fmt.Sprintf("nft %s rule %s %s %s%s %s accept", add, c.Family, c.Table, c.Name, where, match)
	}
	return strings.Join(matches, "; ")
}
