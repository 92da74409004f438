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
	if !c.runs(addressFilterName) {
		return
	}
	if err := (addressfilter.Table{Bridge: c.Bridge(), IPv6: c.Pods6.IsValid()}).Install(ctx); err != nil {
		c.progress.Printf("warning: a Pod with the capability NET_RAW can take the addresses of others: %v", err)
		return
	}
	c.addressFilter = true
}

// removeAddressFilter removes the rules of installAddressFilter.
func (l Layout) removeAddressFilter(ctx context.Context) error {
	return addressfilter.Table{Bridge: l.Bridge()}.Remove(ctx)
}
