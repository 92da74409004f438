package firewall

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/iptables"
)

// table is the table of iptables that accepts and drops.
const table = "filter"

// inputSuffix distinguishes the chain of packets to this machine from that of forwarded ones, which has the interface's name.
const inputSuffix = "-in"

// Interface is the network interface by which the machine reaches a cluster's Pods.
type Interface struct {
	// Name is the interface's name. The chains have it, too.
	Name string
	// IPv6 says that Pods have IPv6 addresses.
	IPv6 bool
	// TCP and UDP are the ports of this machine on which what belongs to the cluster listens for Pods. Others stay as the
	// machine's firewall has them.
	TCP, UDP []int
}

// Keep makes the rules, and makes them again if they are removed, until ctx ends; they stay then. On a machine
// without a working iptables it waits until one is installed.
func (i Interface) Keep(ctx context.Context, deps iptables.Deps) error {
	config := iptables.Config{Name: "the rules for the packets of Pods", IPv4: i.rules(), Prepare: i.removeOutdated}
	if i.IPv6 {
		config.IPv6 = i.rules()
	}
	return iptables.New(deps, config).Start(ctx)
}

// rules are those of one family.
func (i Interface) rules() iptables.Rules {
	forward, input := iptables.Chain{Table: table, Name: i.Name}, iptables.Chain{Table: table, Name: i.Name + inputSuffix}
	rules := iptables.Rules{
		Chains: []iptables.Chain{forward},
		Rules: []iptables.Rule{
			{Chain: forward, Match: []string{"-i", i.Name, "-j", "ACCEPT"}},
			{Chain: forward, Match: []string{"-o", i.Name, "-j", "ACCEPT"}},
			{Chain: iptables.Chain{Table: table, Name: "FORWARD"}, Place: iptables.BeforeRest, Match: []string{"-j", forward.Name}},
		},
	}
	if len(i.TCP)+len(i.UDP) == 0 {
		return rules
	}
	rules.Chains = append(rules.Chains, input)
	for _, protocol := range []struct {
		name  string
		ports []int
	}{{"tcp", i.TCP}, {"udp", i.UDP}} {
		for _, port := range protocol.ports {
			rules.Rules = append(rules.Rules, iptables.Rule{Chain: input, Match: []string{
				"-i", i.Name, "-p", protocol.name, "-m", protocol.name, "--dport", strconv.Itoa(port), "-j", "ACCEPT",
			}})
		}
	}
	rules.Rules = append(rules.Rules, iptables.Rule{
		Chain: iptables.Chain{Table: table, Name: "INPUT"}, Place: iptables.BeforeRest, Match: []string{"-j", input.Name},
	})
	return rules
}

// removeOutdated removes the rules if there is one that these do not have, as that of an earlier run with other ports.
func (i Interface) removeOutdated(ctx context.Context) error {
	wanted := make(map[string]bool)
	for _, rule := range i.rules().Rules {
		wanted["-A "+rule.Chain.Name+" "+strings.Join(rule.Match, " ")] = true
	}
	for _, program := range programs {
		if program == "ip6tables" && !i.IPv6 {
			clear(wanted) // those of a run with IPv6 are outdated, too
		}
		listed, err := list(ctx, program)
		if err != nil {
			return fmt.Errorf("check the firewall's rules for %s: %w", i.Name, err)
		}
		for _, name := range chains(i.Name) {
			if slices.ContainsFunc(listed, func(line string) bool { return strings.HasPrefix(line, "-A "+name+" ") && !wanted[line] }) {
				return Remove(ctx, i.Name)
			}
		}
	}
	return nil
}
