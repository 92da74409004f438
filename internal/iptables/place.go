package iptables

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// forAll is how iptables lists a rule for all packets; its last part is the target.
var forAll = regexp.MustCompile(`^-A \S+(?: -m comment --comment (?:"(?:\\.|[^"\\])*"|[^" ]+))? -[jg] (\S+)(?: --reject-with \S+)?$`)

// logs is how iptables lists a rule after which the next one is tried for all packets.
var logs = regexp.MustCompile(` -j (NF)?LOG( |$)`)

// jump is how iptables lists a rule with a target, which its only group is. What is quoted before is passed over.
var jump = regexp.MustCompile(`^-A \S+(?: (?:"(?:\\.|[^"\\])*"|[^" ]+))*? -[jg] (\S+)`)

// placeBeforeRest ensures a rule with the place BeforeRest.
func (k *Keeper) placeBeforeRest(ctx context.Context, f family, r Rule) error {
	rules, err := k.list(ctx, f, r.Chain)
	if err != nil {
		return err
	}
	has, rest := rules.positions(r)
	add := append([]string{"-A", r.Name}, r.Match...)
	if rest > 0 {
		add = append([]string{"-I", r.Name, strconv.Itoa(rest)}, r.Match...)
	}
	// A rule is not deleted by its number: another program may have changed the chain since it was listed, and a rule of that would be
	// deleted. Of two that are the same iptables deletes the first.
	remove := append([]string{"-D", r.Name}, r.Match...)
	var steps [][]string
	switch {
	case has == 0:
		steps = [][]string{add}
	case rest > 0 && has > rest: // where it is, it has no effect
		steps = [][]string{remove, add}
	case rules.mayDrop(rules.between(r.Name, has, rest)...): // it keeps its effect meanwhile
		steps = [][]string{add, remove}
	}
	for _, step := range steps {
		if _, err := k.iptables(ctx, f, r.Table, step...); err != nil {
			return err
		}
	}
	return nil
}

// list returns the rules of a chain, and those of the chains that it needs to know what may be dropped there.
func (k *Keeper) list(ctx context.Context, f family, chain Chain) (chains, error) {
	listed, err := k.iptables(ctx, f, chain.Table, "-S")
	if err == nil {
		return parseChains(listed), nil
	}
	// It lists nothing if one of the table's chains has what only the program nft can list, but the other chains it does.
	listed, err = k.iptables(ctx, f, chain.Table, "-S", chain.Name)
	if err != nil {
		return nil, err
	}
	for _, rule := range parseChains(listed)[chain.Name] {
		if match := jump.FindStringSubmatch(rule); match != nil {
			target, err := k.iptables(ctx, f, chain.Table, "-S", match[1])
			if ctx.Err() != nil {
				return nil, err
			}
			listed += target // nothing for what is no chain, and for one that only nft can list
		}
	}
	return parseChains(listed), nil
}

// chains are the rules of each chain of a table as iptables lists them.
type chains map[string][]string

func parseChains(listed string) chains {
	rules := make(chains)
	for line := range strings.Lines(listed) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "-A" {
			rules[fields[1]] = append(rules[fields[1]], strings.TrimSpace(line))
		}
	}
	return rules
}

// positions returns the numbers, from 1, of the rule and of the first one that drops the rest in its chain; 0 for one that does not exist.
func (c chains) positions(r Rule) (has, rest int) {
	has = 1 + slices.Index(c[r.Name], "-A "+r.Name+" "+strings.Join(r.Match, " "))
	rest = 1 + slices.IndexFunc(c[r.Name], func(rule string) bool {
		target := targetForAll(rule)
		return isDrop(target) || dropsOnly(c[target])
	})
	return has, rest
}

// between returns the rules of a chain between two positions; an end of 0 is that of the chain.
func (c chains) between(name string, after, end int) []string {
	if end == 0 {
		return c[name][after:]
	}
	return c[name][after : end-1]
}

// mayDrop reports whether one of the rules may drop or reject a packet. One that leads to an empty or an unknown chain may: another
// program may be about to fill it. One that leads to a chain that only accepts, such as that of another cluster, may not: else two
// programs could move their rules behind each other's for ever.
func (c chains) mayDrop(rules ...string) bool {
	seen := map[string]bool{} // a list that was made while rules were changed may lead back to a chain
	var may func(rules []string) bool
	may = func(rules []string) bool {
		return slices.ContainsFunc(rules, func(rule string) bool {
			match := jump.FindStringSubmatch(rule)
			if match == nil {
				return false // it only counts
			}
			target := match[1]
			if seen[target] || slices.Contains([]string{"ACCEPT", "LOG", "NFLOG"}, target) {
				return false
			}
			seen[target] = true
			return len(c[target]) == 0 || may(c[target])
		})
	}
	return may(rules)
}

// dropsOnly reports whether a chain has nothing but a rule that drops all packets, as ufw has it for a default of "reject". One that drops
// some packets before is different: what the user drops there is to stay dropped.
func dropsOnly(rules []string) bool {
	i := slices.IndexFunc(rules, func(rule string) bool { return !logs.MatchString(rule) })
	return i >= 0 && isDrop(targetForAll(rules[i]))
}

func isDrop(target string) bool { return target == "DROP" || target == "REJECT" }

// targetForAll returns the target of a rule for all packets, and nothing for another rule.
func targetForAll(rule string) string {
	if match := forAll.FindStringSubmatch(rule); match != nil {
		return match[1]
	}
	return ""
}
