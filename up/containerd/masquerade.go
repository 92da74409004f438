package containerd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Masquerade makes the Pods' connections to other networks leave with the machine's own address: one rule for the
// whole cluster, where the bridge plugin would make and remove a chain for each Pod, which is most of what it
// costs to end one. It needs Machine.Firewall "iptables", may run again, and goes with [Config.ClusterMasquerade].
func (c Config) Masquerade(ctx context.Context) error {
	there, err := c.masquerades(ctx)
	if err != nil || there {
		return err
	}
	return c.iptables(ctx, "-A")
}

// Unmasquerade takes the rule of [Config.Masquerade] away; without one it does nothing.
func (c Config) Unmasquerade(ctx context.Context) error {
	for {
		there, err := c.masquerades(ctx)
		if err != nil || !there {
			return err
		}
		if err := c.iptables(ctx, "-D"); err != nil {
			return err
		}
	}
}

// masquerades reports whether the rule is there.
func (c Config) masquerades(ctx context.Context) (bool, error) {
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
	args := []string{"-w", "5", "-t", "nat", action, "POSTROUTING", "-s", c.PodCIDR.String(), "!", "-d", "224.0.0.0/4",
		"!", "-o", c.Bridge, "-m", "comment", "--comment", "berth pods on " + c.Bridge, "-j", "MASQUERADE"}
	if out, err := exec.CommandContext(ctx, "iptables", args...).CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("masquerade %s: %w", c.PodCIDR, ctx.Err()) // not that iptables was killed for it
		}
		return fmt.Errorf("masquerade %s: iptables %s: %w: %s", c.PodCIDR, action, err, strings.TrimSpace(string(out)))
	}
	return nil
}
