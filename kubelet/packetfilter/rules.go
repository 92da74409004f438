package packetfilter

// The chains, by the names that Kubernetes has for them.
const (
	// HintChain, in the table mangle, says that the node uses this kind of iptables: legacy or nf_tables.
	HintChain = "KUBE-IPTABLES-HINT"
	// FirewallChain, in the table filter, drops what must not reach the node. kube-proxy makes the same rule.
	FirewallChain = "KUBE-FIREWALL"
	// CanaryChain, in each table, is gone when a program has flushed the table.
	CanaryChain = "KUBE-KUBELET-CANARY"
)

// chain is a chain of a table.
type chain struct{ table, name string }

// rule is a rule of a chain. A first rule is inserted before all others, another one appended.
type rule struct {
	chain
	first bool
	match []string
}

// commonChains are those of IPv4 and IPv6.
func commonChains() []chain {
	return []chain{
		{"mangle", HintChain}, {"mangle", CanaryChain}, {"nat", CanaryChain}, {"filter", CanaryChain},
	}
}

// localnetChains and localnetRules keep packets from elsewhere away from 127.0.0.0/8. IPv6 has no route_localnet.
func localnetChains() []chain { return []chain{{"filter", FirewallChain}} }

func localnetRules() []rule {
	return []rule{
		{chain{"filter", "OUTPUT"}, true, []string{"-j", FirewallChain}},
		{chain{"filter", "INPUT"}, true, []string{"-j", FirewallChain}},
		{chain{"filter", FirewallChain}, false, []string{
			"-m", "comment", "--comment", "block incoming localnet connections", "--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8",
			"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP",
		}},
	}
}

// isOurs reports whether the deletion of a chain, of rules of it, or, if its name is empty, of a whole table concerns ours.
func isOurs(table, name string) bool {
	if name == "" {
		return table == "mangle" || table == "nat" || table == "filter"
	}
	for _, one := range append(commonChains(), localnetChains()...) {
		if one.table == table && one.name == name {
			return true
		}
	}
	return table == "filter" && (name == "INPUT" || name == "OUTPUT")
}
