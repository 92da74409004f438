package up

import (
	"context"

	"github.com/berth-dev/berth/up/addressfilter"
)

// addressFilterName is the name of what keeps Pods to their own addresses, among the components.
const addressFilterName = "address-filter"

// installAddressFilter keeps the Pods that are started from now on to their own addresses. A machine that cannot do that is
// warned about.
func (c *Cluster) installAddressFilter(ctx context.Context) {
	if err := (addressfilter.Table{Bridge: c.Bridge(), IPv6: c.Pods6.IsValid()}).Install(ctx); err != nil {
		c.progress.Printf("warning: a Pod with the capability NET_RAW can take the addresses of others: %v", err)
		return
	}
	c.addressFilter = true
}

// removeAddressFilter removes the rules of installAddressFilter; it does nothing if there are none.
func (l Layout) removeAddressFilter(ctx context.Context) error {
	tables, err := listTables(ctx)
	if err != nil || !tables[nftTable{"bridge", l.Bridge()}] && !tables[nftTable{"ip", l.Bridge()}] {
		return nil //nolint:nilerr // a machine without nft or a kernel without nftables has none
	}
	return addressfilter.Table{Bridge: l.Bridge()}.Remove(ctx)
}
