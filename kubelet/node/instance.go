package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Instance is what a cloud provider knows of this machine. What it does not know is empty.
type Instance struct {
	// ProviderID becomes spec.providerID of a Node that has none.
	ProviderID string
	// Type, Zone and Region become labels of the Node, beside Labels.
	Type, Zone, Region string
	Labels             map[string]string
	// Addresses are all addresses of the Node; if there are none it has those of its Config.
	Addresses []corev1.NodeAddress
}

// allLabels returns the Node's labels for the instance.
func (i *Instance) allLabels() map[string]string {
	labels := map[string]string{}
	for key, value := range i.Labels {
		labels[key] = value
	}
	for key, value := range map[string]string{
		corev1.LabelInstanceTypeStable: i.Type, corev1.LabelInstanceType: i.Type,
		corev1.LabelTopologyZone: i.Zone, corev1.LabelFailureDomainBetaZone: i.Zone,
		corev1.LabelTopologyRegion: i.Region, corev1.LabelFailureDomainBetaRegion: i.Region,
	} {
		if value != "" {
			labels[key] = value
		}
	}
	return labels
}

// refreshInstance reads the instance when it is due. Before the Node is registered it has to be known; later an error keeps
// what was known.
func (o *observer) refreshInstance(ctx context.Context, config *Config) error {
	now := o.deps.Clock.Now()
	if o.deps.Instance == nil || now.Before(o.nextInstance) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	self := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: config.ProviderID}}
	self.Name = config.Name
	instance, err := o.deps.Instance(ctx, self)
	if err != nil {
		err = fmt.Errorf("read the cloud's instance of node %q: %w", config.Name, err)
		if o.observed.instance == nil {
			return err
		}
		o.deps.Logger.Warn("keeping what is known of the cloud's instance", "error", err)
	} else {
		o.observed.instance = &instance
	}
	o.nextInstance = now.Add(instanceInterval)
	return nil
}

// addresses returns the Node's addresses: those of the instance if it has any. Those that a cloud's controller manager has set
// are kept; until it has, they are those that the user has chosen.
func addresses(config *Config, old []corev1.NodeAddress, o *observed) []corev1.NodeAddress {
	hostname := corev1.NodeAddress{Type: corev1.NodeHostName, Address: config.Hostname}
	if o.instance != nil && len(o.instance.Addresses) > 0 {
		list := append([]corev1.NodeAddress(nil), o.instance.Addresses...)
		for _, address := range list {
			if address.Type == corev1.NodeHostName {
				return list
			}
		}
		return append(list, hostname)
	}
	ips := o.ips
	if config.Cloud.External {
		if len(old) > 0 {
			return old
		}
		if !config.Cloud.ChosenIPs {
			ips = nil
		}
	}
	var list []corev1.NodeAddress
	for _, ip := range ips {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	return append(list, hostname)
}
