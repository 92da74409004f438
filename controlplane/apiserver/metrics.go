package apiserver

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controlplane/clustermetrics"
	"github.com/berth-dev/berth/controlplane/resourcemetrics"
)

// proxyConfigName is the name of the file in --run-dir with the configuration of this machine's kube-proxy, which `berth up` writes.
const proxyConfigName = "kube-proxy.json"

// dnsSocketName is the name of the socket in --run-dir on which the cluster's DNS serves its metrics, as `berth up` configures it.
const dnsSocketName = "dns-metrics.sock"

// installMetrics makes the server serve metrics.k8s.io, and the metrics of all processes.
func (s *Server) installMetrics(aggregator *genericapiserver.GenericAPIServer, config app.CompletedConfig) error {
	kube, ok := aggregator.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return fmt.Errorf("install metrics.k8s.io: the aggregator delegates to a %T", aggregator.NextDelegate())
	}
	informers := config.KubeAPIs.ControlPlane.VersionedInformers
	nodes := informers.Core().V1().Nodes().Lister()
	connections, err := kubeletclient.NewNodeConnectionInfoGetter(kubeletclient.NodeGetterFunc(
		func(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
			return nodes.Get(name)
		}), config.KubeAPIs.Extra.KubeletClientConfig)
	if err != nil {
		return fmt.Errorf("set up connections to kubelets: %w", err)
	}
	if err := resourcemetrics.Install(kube, resourcemetrics.Deps{Informers: informers, Connections: connections, Clock: clock.RealClock{}}); err != nil {
		return err
	}
	if err := aggregator.AddPostStartHook(resourcemetrics.HookName, resourcemetrics.Hook); err != nil {
		return fmt.Errorf("add the registration of metrics.k8s.io: %w", err)
	}
	handler, err := clustermetrics.New(clustermetrics.Deps{
		Nodes: nodes, Connections: connections, Clock: clock.RealClock{}, Node: s.config.NodeName,
		ProxyConfig: filepath.Join(s.config.RunDir, proxyConfigName), DNSSocket: filepath.Join(s.config.RunDir, dnsSocketName),
	})
	if err != nil {
		return err
	}
	aggregator.Handler.NonGoRestfulMux.Handle(clustermetrics.Path, handler)
	return nil
}
