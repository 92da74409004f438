package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// Link is a network namespace that stands for another machine, with a link to this one.
type Link struct {
	name string
	// Host is this machine's address on the link, Machine the other one's.
	Host, Machine netip.Addr
}

// NewLink creates the namespace and the link, whose addresses are the first two of network. What an earlier run that was
// killed has left is removed before. name is that of the namespace and of this machine's interface.
func NewLink(ctx context.Context, name string, network netip.Prefix) (*Link, error) {
	host := network.Masked().Addr().Next()
	l := &Link{name: name, Host: host, Machine: host.Next()}
	_ = l.Remove(ctx) // there is nothing as a rule
	bits := fmt.Sprintf("/%d", network.Bits())
	for _, command := range []string{
		"netns add " + name,
		"link add " + name + " type veth peer name eth0 netns " + name,
		"addr add " + l.Host.String() + bits + " dev " + name,
		"link set " + name + " up",
		"-n " + name + " link set lo up",
		"-n " + name + " addr add " + l.Machine.String() + bits + " dev eth0",
		"-n " + name + " link set eth0 up",
		"-n " + name + " route add default via " + l.Host.String(),
	} {
		if err := ip(ctx, command); err != nil {
			return nil, errors.Join(fmt.Errorf("make the network of a second machine: %w", err), l.Remove(ctx))
		}
	}
	return l, nil
}

// enter returns the beginning of a command that runs a program on the other machine: in the namespace, and with a host name
// of its own, which Pods with hostNetwork have, too.
func (l *Link) enter() []string {
	return []string{"nsenter", "--net=/run/netns/" + l.name, "--", "unshare", "--uts", "--", "sh", "-c", `hostname "$0" && exec "$@"`, l.name}
}

// Remove removes the namespace and the link.
func (l *Link) Remove(ctx context.Context) error {
	linkErr := ip(ctx, "link delete "+l.name)
	if err := ip(ctx, "netns delete "+l.name); err != nil {
		return errors.Join(linkErr, err)
	}
	return nil // the link may end with the namespace
}

func ip(ctx context.Context, arguments string) error {
	if out, err := exec.CommandContext(ctx, "ip", strings.Fields(arguments)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", arguments, err, bytes.TrimSpace(out))
	}
	return nil
}
