package iptables

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// dropsRest is how iptables lists a rule that drops or rejects all packets.
var dropsRest = regexp.MustCompile(`^-A \S+( -m comment --comment ("(\\.|[^"\\])*"|[^" ]+))? -j (DROP|REJECT( --reject-with \S+)?)$`)

// placeBeforeRest ensures a rule with the place BeforeRest.
func (k *Keeper) placeBeforeRest(ctx context.Context, f family, r Rule) error {
	listed, err := k.iptables(ctx, f, r.Table, "-S", r.Name)
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

// positions returns the numbers, from 1, of the rule and of the first one that drops the rest in a chain as iptables lists it;
// 0 for one that does not exist.
func positions(listed string, r Rule) (has, rest int) {
	var rules []string
	for line := range strings.Lines(listed) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "-A ") {
			rules = append(rules, line)
		}
	}
	has = 1 + slices.Index(rules, "-A "+r.Name+" "+strings.Join(r.Match, " "))
	rest = 1 + slices.IndexFunc(rules, dropsRest.MatchString)
	return has, rest
}
