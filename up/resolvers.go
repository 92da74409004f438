package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/pidfile"
	"github.com/berth-dev/berth/internal/resolvconf"
	"github.com/berth-dev/berth/internal/statefile"
)

// resolversName is the name of the component that follows the machine's name servers.
const resolversName = "resolvers"

// resolverFiles are the files that name the name servers for names of the outside.
func (l Layout) resolverFiles() resolvconf.Files {
	if l.ResolvConf != "" {
		return resolvconf.Files{Main: l.ResolvConf}
	}
	return resolvconf.Files{Main: resolvconf.Path, Resolved: resolvconf.ResolvedPath}
}

// forwarders returns the name servers to which the cluster's DNS forwards names of the outside: those of the machine, without
// the cluster's own DNS.
func (l Layout) forwarders() ([]string, error) {
	config, err := l.resolverFiles().Read()
	if err != nil {
		return nil, err
	}
	own := l.gateways()
	if addresses, err := l.dnsServiceAddresses(); err == nil {
		own = append(own, addresses...)
	}
	return config.Without(strings.Fields(joinAddresses(own))...).Servers, nil
}

// podResolvConf is the resolver file from which Pods inherit that use the machine's name servers. On a machine without a
// name server that Pods can reach, it names the cluster's DNS, which forwards to those on loopback.
func (c *Cluster) podResolvConf() string { return filepath.Join(c.RunDir, "resolv.conf") }

// writePodResolvConf writes podResolvConf if it has changed.
func (c *Cluster) writePodResolvConf() error {
	config, err := c.resolverFiles().ReadForOthers()
	if err != nil {
		return err
	}
	if len(config.Servers) == 0 {
		// A runtime replaces an empty list by the machine's.
		config.Servers = []string{"127.0.0.1"}
		if c.runs(dnsName) {
			config.Servers = []string{c.Gateway.String()}
		}
	}
	_, err = replaceFile(c.podResolvConf(), []byte(config.String()), 0o644)
	return err
}

// newResolvers returns the component that follows the machine's name servers: it updates the resolver file of Pods and the
// configuration of the cluster's DNS.
func (c *Cluster) newResolvers() (runFunc, error) {
	return func(ctx context.Context) error {
		return c.resolverFiles().Watch(ctx, func() {
			if err := c.updateResolvers(); err != nil {
				c.logAndPrint(fmt.Sprintf("failed to use the machine's name servers: %v", err))
			}
		})
	}, nil
}

func (c *Cluster) updateResolvers() error {
	if err := c.writePodResolvConf(); err != nil {
		return err
	}
	if !c.runs(dnsName) {
		return nil
	}
	changed, err := c.writeCorefile()
	if err != nil || !changed {
		return err
	}
	c.logger.Info("the machine's name servers have changed", "component", resolversName)
	return signalProcess(c.pidFile(dnsName), unix.SIGUSR1)
}

// signalProcess sends a signal to the process of a pid file. A process that does not run reads its configuration when it
// starts.
func signalProcess(pidFile string, signal unix.Signal) error {
	pid := pidfile.Running(pidfile.Proc, pidFile)
	if pid == 0 {
		return nil
	}
	if err := unix.Kill(pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// replaceFile writes the file unless it has the content already.
func replaceFile(path string, content []byte, mode fs.FileMode) (changed bool, err error) {
	if old, err := statefile.Read(path, int64(len(content))); err == nil && string(old) == string(content) {
		return false, nil
	}
	return true, atomicfile.WriteVolatile(path, content, mode)
}

// removeUnusedConfigs removes the configurations of components that only an earlier run had: [Layout.NodeNetwork] finds the
// components by them.
func (c *Cluster) removeUnusedConfigs() error {
	for name, path := range map[string]string{proxyName: c.proxyConfigPath(), dnsName: c.corefilePath()} {
		if c.runs(name) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the configuration of %s, which does not run: %w", name, err)
		}
	}
	return nil
}

// loopError is what the cluster's DNS logs last when a name server of the machine leads back to it.
const loopError = "plugin/loop: Loop"

// isLoop reports whether the DNS has ended because a question that it forwarded came back.
func isLoop(err error) bool { return err != nil && strings.Contains(err.Error(), loopError) }
