package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/explain/nodenetwork"
)

// wordDNS stands in the place of a type where a name is explained.
const wordDNS = "dns"

// parseName reads the name of `berth explain dns NAME --from pod/POD`.
func (f *explainFlags) parseName(name string) (target, error) {
	if name == "" {
		return target{}, errors.New("no name given: use `berth explain dns NAME --from pod/POD`")
	}
	if f.from == "" {
		return target{}, errors.New("names resolve differently in each Pod: say in which with --from pod/POD")
	}
	if kind, pod, ok := strings.Cut(f.from, "/"); ok {
		if parsed, err := explain.ParseKind(kind); err != nil || parsed != explain.KindPod || pod == "" || strings.Contains(pod, "/") {
			return target{}, fmt.Errorf("--from %q: names a Pod as pod/POD", f.from)
		}
	}
	return target{explain.KindName, name}, nil
}

// pod is the name of the Pod that --from names.
func (f *explainFlags) pod() string {
	if _, name, ok := strings.Cut(f.from, "/"); ok {
		return name
	}
	return f.from
}

// connectNetwork adds the network of this node to the source if this machine is a node of the cluster: by
// --runtime-endpoint, or because the cluster is the one of --data-dir.
func (f *explainFlags) connectNetwork(src *explain.Source, config *rest.Config) error {
	if f.runtime != "" {
		socket := strings.TrimPrefix(f.runtime, "unix://")
		if _, err := os.Stat(socket); err != nil {
			return fmt.Errorf("--runtime-endpoint: %w", err)
		}
		src.Network = nodenetwork.New(nodenetwork.Config{RuntimeSocket: socket, PeerSocket: socket})
		return nil
	}
	own, err := clientcmd.BuildConfigFromFlags("", f.layout.AdminKubeconfig())
	if err != nil || own.Host != config.Host {
		return nil //nolint:nilerr // another cluster, of which this machine is no node as far as is known
	}
	if _, err := os.Stat(f.layout.ContainerdSocket()); err == nil {
		src.Network = nodenetwork.New(f.layout.NodeNetwork())
	}
	return nil
}
