package firewall

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// programs are those of IPv4 and IPv6.
var programs = [...]string{"iptables", "ip6tables"}

// lockBusy is the exit code of iptables when it could not get its lock, or memory.
const lockBusy = 4

// chains are the names of an interface's chains.
func chains(name string) []string { return []string{name, name + inputSuffix} }

// Remove removes the rules of an interface. It does nothing if there are none.
func Remove(ctx context.Context, name string) error {
	var errs []error
	for _, program := range programs {
		listed, err := list(ctx, program)
		if err == nil {
			err = restore(ctx, program, removal(listed, chains(name)))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove the firewall's rules for %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// removal is the input of iptables-restore that removes the chains and the rules that lead to them; empty if there is nothing to remove.
func removal(listed, names []string) string {
	var jumps, ends strings.Builder
	for _, name := range names {
		if slices.Contains(listed, "-N "+name) {
			fmt.Fprintf(&ends, "-F %[1]s\n-X %[1]s\n", name)
		}
		for _, line := range listed {
			if rule, ok := strings.CutPrefix(line, "-A "); ok && strings.HasSuffix(line, " -j "+name) {
				fmt.Fprintf(&jumps, "-D %s\n", rule)
			}
		}
	}
	if ends.Len() == 0 {
		return ""
	}
	return "*" + table + "\n" + jumps.String() + ends.String() + "COMMIT\n"
}

// Interfaces are the names of the interfaces that have rules, also those that do not exist any more. It needs root.
func Interfaces(ctx context.Context) ([]string, error) {
	var names []string
	for _, program := range programs {
		listed, err := list(ctx, program)
		if err != nil {
			return names, err
		}
		for _, line := range listed {
			name, ok := strings.CutPrefix(line, "-N ")
			if ok && slices.Contains(listed, "-A "+name+" -i "+name+" -j ACCEPT") && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// list returns the rules of the table as iptables lists them; none if this machine has no working iptables of the family.
func list(ctx context.Context, program string) ([]string, error) {
	rules, err := listChain(ctx, program)
	if len(rules) > 0 || err != nil {
		return rules, err
	}
	// It lists nothing if one of the table's chains has what only the program nft can list, but the other chains it does.
	for _, name := range []string{"FORWARD", "INPUT"} {
		lines, err := listChain(ctx, program, name)
		if err != nil {
			return nil, err
		}
		rules = append(rules, lines...)
		for _, line := range lines {
			if _, target, ok := strings.Cut(line, " -j "); ok && !strings.Contains(target, " ") {
				lines, err := listChain(ctx, program, target)
				if err != nil {
					return nil, err
				}
				rules = append(rules, lines...)
			}
		}
	}
	return rules, nil
}

// listChain returns the rules of one chain, or of all, and none if iptables cannot list them.
func listChain(ctx context.Context, program string, name ...string) ([]string, error) {
	out, err := exec.CommandContext(ctx, program, append([]string{"-w", "5", "-t", table, "-S"}, name...)...).Output()
	if ctx.Err() != nil {
		return nil, ctx.Err() // not that iptables was killed for it
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == lockBusy {
		return nil, fmt.Errorf("list the firewall's rules: %s -S: %w: %s", program, err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return nil, nil //nolint:nilerr // see above
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// restore changes rules at once.
func restore(ctx context.Context, program, script string) error {
	if script == "" {
		return nil
	}
	cmd := exec.CommandContext(ctx, program+"-restore", "-w", "5", "--noflush")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s-restore: %w: %s", program, err, strings.TrimSpace(string(out))))
	}
	return nil
}
