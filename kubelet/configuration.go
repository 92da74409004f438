package kubelet

import (
	"fmt"
	"net"
	"strings"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/settings"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
	"github.com/berth-dev/berth/version"
)

// convertConfiguration returns what a configuration of Kubernetes says, with its defaults, and with the machine's own values for
// what that leaves open. The server and the collection of images are started by methods of their own.
func convertConfiguration(in *kubeletconfig.KubeletConfiguration, hostname func() (string, error)) (*settings.Settings, error) {
	host, err := hostname()
	if err != nil {
		return nil, fmt.Errorf("find the host name: %w", err)
	}
	chosen, err := settings.Convert(in)
	if err != nil {
		return nil, err
	}
	config := &chosen.Agent
	config.Node.Name, config.Node.IPs, config.Node.Version = strings.ToLower(host), []net.IP{outboundAddress()}, version.Kubelet()
	config.RootDir = settings.DefaultRootDir
	config.Server.Addresses, config.Server.HealthzAddress, config.Server.ReadOnlyAddress = nil, "", ""
	config.Images.GCHigh, config.Images.GCLow = 0, 0
	return chosen, nil
}

// outboundAddress returns the address by which the machine reaches others, or else its loopback one.
func outboundAddress() net.IP {
	// Connecting a datagram socket sends nothing: it only makes the kernel choose a route. The address is one that
	// RFC 5737 keeps for documentation.
	connection, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9})
	if err != nil {
		return net.IPv4(127, 0, 0, 1)
	}
	defer connection.Close()
	if local, ok := connection.LocalAddr().(*net.UDPAddr); ok {
		return local.IP
	}
	return net.IPv4(127, 0, 0, 1)
}

// ParseReservation parses what is reserved for the daemons of Kubernetes and of the system, by resource: cpu, memory,
// ephemeral-storage and pid.
func ParseReservation(kubeReserved, systemReserved map[string]string) (*kubelettypes.Reservation, error) {
	kube, err := cm.ParseReserved("kubeReserved", kubeReserved)
	if err != nil {
		return nil, err
	}
	system, err := cm.ParseReserved("systemReserved", systemReserved)
	if err != nil {
		return nil, err
	}
	return &kubelettypes.Reservation{Kubernetes: kube, System: system}, nil
}
