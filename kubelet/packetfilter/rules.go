package packetfilter

import "github.com/berth-dev/berth/internal/iptables"

// The chains, by the names that Kubernetes has for them.
const (
	// HintChain, in the table mangle, says that the node uses this kind of iptables: legacy or nf_tables.
	HintChain = "KUBE-IPTABLES-HINT"
	// FirewallChain, in the table filter, drops what must not reach the node. kube-proxy makes the same rule.
	FirewallChain = "KUBE-FIREWALL"
	// CanaryChain, in each table, is gone when a program has flushed the table.
	CanaryChain = "KUBE-KUBELET-CANARY"
)

// commonChains are those of IPv4 and IPv6.
func commonChains() []iptables.Chain {
	return []iptables.Chain{
		{Table: "mangle", Name: HintChain}, {Table: "mangle", Name: CanaryChain}, {Table: "nat", Name: CanaryChain}, {Table: "filter", Name: CanaryChain},
	}
}

// localnet keeps packets from elsewhere away from 127.0.0.0/8. IPv6 has no route_localnet.
func localnet() []iptables.Rule {
	filter := func(name string) iptables.Chain { return iptables.Chain{Table: "filter", Name: name} }
	return []iptables.Rule{
		{Chain: filter("OUTPUT"), Place: iptables.First, Match: []string{"-j", FirewallChain}},
		{Chain: filter("INPUT"), Place: iptables.First, Match: []string{"-j", FirewallChain}},
		{Chain: filter(FirewallChain), Match: []string{
			"-m", "comment", "--comment", "block incoming localnet connections", "--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8",
			"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP",
		}},
	}
}

// New returns what keeps the chains.
func New(deps iptables.Deps) *iptables.Keeper {
	return iptables.New(deps, iptables.Config{
		Name: "the kubelet's chains",
		IPv4: iptables.Rules{Chains: append(commonChains(), iptables.Chain{Table: "filter", Name: FirewallChain}), Rules: localnet()},
		IPv6: iptables.Rules{Chains: commonChains()},
	})
}
