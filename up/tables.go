package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/iptables"
	"github.com/berth-dev/berth/internal/nftwatch"
	"github.com/berth-dev/berth/up/addressfilter"
	"github.com/berth-dev/berth/up/containerd"
	"github.com/berth-dev/berth/up/hostports"
)

// tablesName is the name of what makes the cluster's own tables again, among the components.
const tablesName = "firewall-tables"

// prepareTables makes the tables that have to exist before the first Pod is started, and removes the rules of an earlier run that this one
// is without: the Pods of that run may run on.
func (c *Cluster) prepareTables(ctx context.Context) error {
	if err := c.installMasquerade6(ctx); err != nil {
		return err
	}
	if c.runs(addressFilterName) {
		c.installAddressFilter(ctx)
	}
	if c.config.Inside != nil { // new namespaces have no rules of an earlier run
		return nil
	}
	var errs []error
	if !c.runs(addressFilterName) {
		errs = append(errs, c.removeAddressFilter(ctx))
	}
	if !c.runs(firewallName) {
		errs = append(errs, c.removeFirewallRules(ctx))
	}
	return errors.Join(errs...)
}

// newTables returns the component that makes the cluster's own tables of nftables again when another program has removed them, as
// `nft -f /etc/nftables.conf` does with all tables, and what the cluster has in others' tables for masquerading and host ports. For those of kube-proxy see guardProxyTables.
func (c *Cluster) newTables() (runFunc, error) {
	return func(ctx context.Context) error {
		// The table may have been removed, and made again without the Pods that run, while nothing watched.
		restricted := false
		return nftwatch.Keep(ctx, nftwatch.Deps{Clock: c.clock, Logger: c.logger}, nftwatch.Kept{
			Name: "the cluster's tables",
			Concerns: func(change nftwatch.Change) bool {
				switch {
				case change.Added:
					return false
				case change.Chain == "":
					return change.Table == c.Bridge() || change.Table == "nat" || change.Table == hostports.Table
				}
				return change.Table == "nat" && change.Chain == "POSTROUTING"
			},
			Ensure: func(ctx context.Context) error {
				err := c.ensureTables(ctx, !restricted)
				restricted = restricted || err == nil
				return err
			},
			HasNoEvents: iptables.IsLegacy(ctx), // the rule that masquerades, and those for host ports
		})
	}, nil
}

// ensureTables makes what is missing of the cluster's own tables, the rule that masquerades IPv4, and the rules for host ports of the Pods
// that run. restrict says that these Pods may be missing in a table that exists.
func (c *Cluster) ensureTables(ctx context.Context, restrict bool) error {
	tables, err := listTables(ctx)
	if err != nil && (c.addressFilter || c.Pods6.IsValid()) {
		return err
	}
	var errs []error
	if isMissing := !tables[nftTable{"bridge", c.Bridge()}] || !tables[nftTable{"ip", c.Bridge()}]; c.addressFilter && (isMissing || restrict) {
		errs = append(errs, c.restoreAddressFilter(ctx, isMissing))
	}
	if c.Pods6.IsValid() && !tables[nftTable{"ip6", c.Bridge()}] {
		errs = append(errs, c.installMasquerade6(ctx))
	}
	if config := c.runtime.Load(); config != nil {
		if config.ClusterMasquerade {
			errs = append(errs, config.Masquerade(ctx))
		}
		errs = append(errs, c.restoreHostPorts(ctx, *config))
	}
	return errors.Join(errs...)
}

// restoreHostPorts makes the rules for host ports of the Pods that run.
func (c *Cluster) restoreHostPorts(ctx context.Context, config containerd.Config) error {
	files, err := filepath.Glob(config.NetworkCache())
	if err != nil {
		return err
	}
	if err := hostports.Ensure(ctx, config.CNIBinDir, files); err != nil && ctx.Err() == nil { // it would be no better the next time
		c.logger.Warn("failed to forward the host ports of all Pods again", "error", err)
	}
	return nil
}

// restoreAddressFilter restricts the Pods that run to their own addresses, after it has made the filter again if that is missing.
func (c *Cluster) restoreAddressFilter(ctx context.Context, isMissing bool) error {
	table := addressfilter.Table{Bridge: c.Bridge(), IPv6: c.Pods6.IsValid()}
	if isMissing {
		if err := table.Install(ctx); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(containerd.Config{Bridge: c.Bridge()}.NetworkCache())
	if err != nil {
		return err
	}
	if err := table.RestrictAll(files); err != nil { // it would be no better the next time
		c.logger.Warn("failed to keep all Pods to their own addresses again", "error", err)
	}
	return nil
}

// errProxyTablesRemoved ends the component of kube-proxy, which writes its tables when it starts.
var errProxyTablesRemoved = errors.New("another program has removed its table from the firewall")

// guardProxyTables returns a component that ends, to be started again, when another program has removed kube-proxy's tables:
// kube-proxy itself notices that with the next change of a Service, or after an hour. adopted says that it has been running before.
func guardProxyTables(run runFunc, adopted bool, logger *slog.Logger) runFunc {
	return func(ctx context.Context) error {
		watched, stop := context.WithCancelCause(ctx)
		ended := make(chan struct{})
		defer func() { stop(nil); <-ended }()
		removed := removedTables{{"ip", proxyTable}: adopted}
		check := func() {
			tables, err := listTables(watched)
			if err != nil {
				if watched.Err() == nil {
					logger.Warn("cannot check the tables of kube-proxy before the next event", "error", err)
				}
				return
			}
			if removed.areMissing(tables) {
				stop(errProxyTablesRemoved)
			}
		}
		concerns := func(change nftwatch.Change) bool {
			if change.Added || change.Table != proxyTable || change.Chain != "" {
				return false
			}
			family := "ip"
			if change.Family == unix.NFPROTO_IPV6 {
				family = "ip6"
			}
			removed[nftTable{family, proxyTable}] = true
			return true
		}
		go func() {
			defer contain.Recover("up.guardProxyTables", proxyName)
			defer close(ended)
			if err := nftwatch.Watch(watched, concerns, check, check); err != nil && watched.Err() == nil {
				logger.Warn("cannot watch the tables of kube-proxy; Services may be unreachable after another program has removed them", "error", err)
			}
		}()
		err := run(watched)
		if ctx.Err() == nil && errors.Is(context.Cause(watched), errProxyTablesRemoved) {
			return errProxyTablesRemoved
		}
		return err
	}
}

// removedTables are the tables of kube-proxy whose removal has been seen, those that are true.
type removedTables map[nftTable]bool

// areMissing reports whether one of them has not been made again, and forgets them. It is called without any when events were lost, its
// own among them perhaps: a removal of many rules causes more than the kernel keeps for a busy machine.
func (r removedTables) areMissing(tables map[nftTable]bool) (missing bool) {
	if len(r) == 0 {
		r[nftTable{"ip", proxyTable}] = true
	}
	for table, isRemoved := range r {
		missing = missing || isRemoved && !tables[table]
	}
	clear(r)
	return missing
}

// nftTable is a table of nftables.
type nftTable struct{ family, name string }

// listTables lists the tables of nftables.
func listTables(ctx context.Context) (map[nftTable]bool, error) {
	list, err := exec.CommandContext(ctx, "nft", "list", "tables").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("nft list tables: %w: %s", err, bytes.TrimSpace(list))
	}
	tables := make(map[nftTable]bool)
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "table" { // "table ip kube-proxy"
			tables[nftTable{fields[1], fields[2]}] = true
		}
	}
	return tables, nil
}
