package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/node"
)

// cloudTimeout bounds the request for the Node's name.
const cloudTimeout = 30 * time.Second

// nameNode gives the Node the name that the cloud has for this machine; its hostname stays the machine's. A cloud that has no name
// for it leaves the host's name.
func nameNode(config *agent.NodeConfig, cloud cloudprovider.Interface) error {
	if cloud == nil {
		return nil
	}
	instances, ok := cloud.Instances()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cloudTimeout)
	defer cancel()
	name, err := instances.CurrentNodeName(ctx, config.Name)
	switch {
	case errors.Is(err, cloudprovider.NotImplemented):
		return nil
	case err != nil:
		return fmt.Errorf("find the node's name in cloud %q: %w", cloud.ProviderName(), err)
	case name != "":
		config.Name, config.Hostname = string(name), cmp.Or(config.Hostname, config.Name)
	}
	return nil
}

// cloudInstance returns the function that reads this machine's instance from the cloud, nil without a cloud.
func cloudInstance(cloud cloudprovider.Interface) func(context.Context, *corev1.Node) (node.Instance, error) {
	if cloud == nil {
		return nil
	}
	return func(ctx context.Context, known *corev1.Node) (node.Instance, error) {
		if instances, ok := cloud.InstancesV2(); ok {
			return newInstance(ctx, instances, known)
		}
		instances, ok := cloud.Instances()
		if !ok {
			return node.Instance{}, fmt.Errorf("cloud %q has no interface for instances", cloud.ProviderName())
		}
		return oldInstance(ctx, cloud, instances, types.NodeName(known.Name))
	}
}

func newInstance(ctx context.Context, instances cloudprovider.InstancesV2, known *corev1.Node) (node.Instance, error) {
	data, err := instances.InstanceMetadata(ctx, known)
	if err != nil {
		return node.Instance{}, err
	}
	return node.Instance{
		ProviderID: data.ProviderID, Type: data.InstanceType, Zone: data.Zone, Region: data.Region, Labels: data.AdditionalLabels,
		Addresses: data.NodeAddresses,
	}, nil
}

// oldInstance reads the instance from a cloud with the older interfaces. What they do not implement stays empty.
func oldInstance(ctx context.Context, cloud cloudprovider.Interface, instances cloudprovider.Instances, name types.NodeName,
) (out node.Instance, err error) {
	if out.Addresses, err = instances.NodeAddresses(ctx, name); err != nil {
		return out, fmt.Errorf("read addresses: %w", err)
	}
	out.ProviderID, err = cloudprovider.GetInstanceProviderID(ctx, cloud, name)
	if err != nil && !errors.Is(err, cloudprovider.NotImplemented) {
		return out, err
	}
	out.Type, err = instances.InstanceType(ctx, name)
	if err != nil && !errors.Is(err, cloudprovider.NotImplemented) {
		return out, fmt.Errorf("read instance type: %w", err)
	}
	zones, ok := cloud.Zones()
	if !ok {
		return out, nil
	}
	zone, err := zones.GetZone(ctx)
	if err != nil && !errors.Is(err, cloudprovider.NotImplemented) {
		return out, fmt.Errorf("read zone: %w", err)
	}
	out.Zone, out.Region = zone.FailureDomain, zone.Region
	return out, nil
}
