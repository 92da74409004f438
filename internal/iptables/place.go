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

// placeBeforeRest ensures a rule with the place BeforeRest.
func (k *Keeper) placeBeforeRest(ctx context.Context, f family, r Rule) error {
	listed, err := k.iptables(ctx, f, r.Table, "-S")
	if err != nil { // it lists nothing if one of the table's chains has what only the program nft can list
		listed, err = k.iptables(ctx, f, r.Table, "-S", r.Name)
	}
	if err != nil {
		return err
	}
	has, rest := positions(listed, r)
	if has > 0 && (rest == 0 || has < rest) {
		return nil
	}
	if has > 0 {
		// Where it is, it has no effect. Not by its number: another program may have changed the chain since it was listed, and a
		// rule of that would be deleted.
		if _, err := k.iptables(ctx, f, r.Table, append([]string{"-D", r.Name}, r.Match...)...); err != nil {
			return err
		}
	}
	args := append([]string{"-A", r.Name}, r.Match...)
	if rest > 0 {
		args = append([]string{"-I", r.Name, strconv.Itoa(rest)}, r.Match...)
	}
	_, err = k.iptables(ctx, f, r.Table, args...)
	return err
}

// positions returns the numbers, from 1, of the rule and of the first one that drops the rest in its chain, in a table as iptables lists
// it; 0 for one that does not exist.
func positions(listed string, r Rule) (has, rest int) {
	rules := make(map[string][]string)
	for line := range strings.Lines(listed) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "-A" {
			rules[fields[1]] = append(rules[fields[1]], strings.TrimSpace(line))
		}
	}
	has = 1 + slices.Index(rules[r.Name], "-A "+r.Name+" "+strings.Join(r.Match, " "))
	rest = 1 + slices.IndexFunc(rules[r.Name], func(rule string) bool {
		target := targetForAll(rule)
		return isDrop(target) || dropsOnly(rules[target])
	})
	return has, rest
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
