package containerd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
)

// Masquerade makes the Pods' connections to other networks leave with the machine's own address: one rule for the
// whole cluster, where the bridge plugin would make and remove a chain for each Pod, which is most of what it
// costs to end one. It needs Machine.Firewall "iptables", may run again, and goes with [Config.ClusterMasquerade].
func (c Config) Masquerade(ctx context.Context) error {
	there, err := c.hasMasqueradeRule(ctx)
	if err != nil || there {
		return err
	}
	if err := c.Unmasquerade(ctx); err != nil { // of an earlier run with other ranges
		return err
	}
	return c.iptables(ctx, "-A")
}

// Unmasquerade takes the rules of [Config.Masquerade] away that name this bridge, whatever range its Pods had then;
// without one it does nothing.
func (c Config) Unmasquerade(ctx context.Context) error {
	rules, err := listMasquerades(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, rule := range rules {
		if rule.bridge != c.Bridge {
			continue
		}
		c.PodCIDR, c.ClusterCIDR = rule.pods, rule.except
		if err := c.iptables(ctx, "-D"); err != nil {
			// Whoever else takes it away at the same time has done our work.
			if there, lookErr := c.hasMasqueradeRule(ctx); lookErr != nil || there {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// masqueradeRule is how iptables lists the rule of [Config.Masquerade]: the Pods' range, the range that is excepted, the
// bridge, and the bridge again in the comment.
var masqueradeRule = regexp.MustCompile(
	`(?m)^-A POSTROUTING -s (\S+) ! -d (\S+) ! -o (\S+) -m comment --comment "berth pods on (\S+)" -j MASQUERADE$`)

// masquerade is one rule of [Config.Masquerade].
type masquerade struct {
	pods, except netip.Prefix
	bridge       string
}

// multicast is excepted where no other range is: Pods send to it without leaving the bridge.
var multicast = netip.MustParsePrefix("224.0.0.0/4")

// Masquerades are the rules of [Config.Masquerade] that are there: the Pods' ranges by bridge, one for each rule. It
// needs root.
func Masquerades(ctx context.Context) (map[string][]netip.Prefix, error) {
	rules, err := listMasquerades(ctx)
	if err != nil {
		return nil, err
	}
	pods := make(map[string][]netip.Prefix)
	for _, rule := range rules {
		pods[rule.bridge] = append(pods[rule.bridge], rule.pods)
	}
	return pods, nil
}

func listMasquerades(ctx context.Context) ([]masquerade, error) {
	out, err := exec.CommandContext(ctx, "iptables", "-w", "5", "-t", "nat", "-S", "POSTROUTING").Output()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // not that iptables was killed for it
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return nil, fmt.Errorf("list the rules that masquerade: iptables -S: %w", err)
	}
	return parseMasquerades(string(out)), nil
}

// parseMasquerades finds the rules in iptables' list. What differs from the rule of [Config.Masquerade] is another's.
func parseMasquerades(list string) []masquerade {
	var rules []masquerade
	for _, match := range masqueradeRule.FindAllStringSubmatch(list, -1) {
		pods, err := netip.ParsePrefix(match[1])
		except, exceptErr := netip.ParsePrefix(match[2])
		if err == nil && exceptErr == nil && match[3] == match[4] {
			rules = append(rules, masquerade{pods: pods, except: except, bridge: match[3]})
		}
	}
	return rules
}

// hasMasqueradeRule reports whether the rule is there.
func (c Config) hasMasqueradeRule(ctx context.Context) (bool, error) {
	err := c.iptables(ctx, "-C")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // Others mean that it could not look.
		return false, nil
	}
	return err == nil, err
}

func (c Config) iptables(ctx context.Context, action string) error {
	if c.Machine.Firewall != "iptables" {
		return fmt.Errorf("masquerade %s: field Machine.Firewall: %q is not supported, only iptables", c.PodCIDR,
			c.Machine.Firewall)
	}
	// Other programs change rules too: -w waits for them, some seconds.
	except := multicast
	if c.ClusterCIDR.IsValid() {
		except = c.ClusterCIDR
	}
	args := []string{"-w", "5", "-t", "nat", action, "POSTROUTING", "-s", c.PodCIDR.String(), "!", "-d", except.String(),
		"!", "-o", c.Bridge, "-m", "comment", "--comment", "berth pods on " + c.Bridge, "-j", "MASQUERADE"}
	if out, err := exec.CommandContext(ctx, "iptables", args...).CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("masquerade %s: %w", c.PodCIDR, ctx.Err()) // not that iptables was killed for it
		}
		return fmt.Errorf("masquerade %s: iptables %s: %w: %s", c.PodCIDR, action, err, strings.TrimSpace(string(out)))
	}
	return nil
}
