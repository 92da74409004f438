package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
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
// iptables, where Docker and ufw drop packets, but not in those that the user or another program made in nftables.
func checkForwarding(ctx context.Context) diagnosis {
	d := diagnosis{Name: "forwarding", Severity: severityOK, Found: "the firewall lets Pods reach each other and other networks"}
	nft, err := exec.LookPath("nft")
	if err != nil || os.Geteuid() != 0 {
		d.Found = "not checked: it needs root and nft"
		return d
	}
	chains, err := listChains(ctx, nft)
	if err != nil {
		d.Severity, d.Found = severityWarning, err.Error()
		return d
	}
	for _, c := range chains {
		// A rule of the user that names the clusters' interfaces is taken for the remedy.
		if remedy := c.remedy(); remedy != "" && !strings.Contains(c.rules(ctx, nft), `"berth`) {
			d.Severity, d.Remedy = severityWarning, remedy
			d.Found = fmt.Sprintf("the chain %s of the firewall's table %s %s drops what no rule accepts, also what Pods send", c.Name, c.Family, c.Table)
			return d
		}
	}
	return d
}

// nftChain is a chain of nftables.
type nftChain struct {
	Family, Table, Name, Hook, Policy string
}

// listChains lists the chains of all tables.
func listChains(ctx context.Context, nft string) ([]nftChain, error) {
	out, err := exec.CommandContext(ctx, nft, "-j", "list", "chains").Output()
	if err != nil {
		return nil, fmt.Errorf("failed to list the firewall's chains: nft -j list chains: %w", err)
	}
	var listed struct {
		Nftables []struct{ Chain *nftChain }
	}
	if err := json.Unmarshal(out, &listed); err != nil {
		return nil, fmt.Errorf("failed to list the firewall's chains: nft -j list chains: %w", err)
	}
	var chains []nftChain
	for _, entry := range listed.Nftables {
		if entry.Chain != nil {
			chains = append(chains, *entry.Chain)
		}
	}
	return chains, nil
}

// rules are the rules of the chain's table as nft lists them; empty if it cannot. firewalld has those of zones in chains of their own.
func (c nftChain) rules(ctx context.Context, nft string) string {
	out, err := exec.CommandContext(ctx, nft, "list", "table", c.Family, c.Table).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// remedy is how the user lets the packets of Pods pass the chain, empty if it does not drop them or `berth up` has a rule for them.
func (c nftChain) remedy() string {
	if c.Table == "firewalld" && c.Name == "filter_FORWARD" { // its last rule rejects, whatever its policy
		return "firewall-cmd --permanent --zone=trusted --add-interface=berth+ && firewall-cmd --reload"
	}
	isOfIPTables := (c.Family == "ip" || c.Family == "ip6") && c.Table == "filter" && c.Name == strings.ToUpper(c.Name)
	if c.Policy != "drop" || isOfIPTables {
		return ""
	}
	add := func(rule string) string {
		return fmt.Sprintf("nft add rule %s %s %s %s", c.Family, c.Table, c.Name, rule)
	}
	switch c.Hook {
	case "forward":
		return add("iifname '"+berthInterfaces+"' accept") + "; " + add("oifname '"+berthInterfaces+"' accept")
	case "input":
		// The cluster's DNS, the API server and the kubelet.
		return add("iifname '" + berthInterfaces + "' meta l4proto '{ tcp, udp }' th dport '{ 53, 6443, 10250 }' accept")
	default:
		return ""
	}
}
