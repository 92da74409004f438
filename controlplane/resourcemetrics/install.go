package resourcemetrics

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	restclient "k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controlplane/bootstrap"
)

const (
	// HookName is the name of Hook; the check in /readyz is poststarthook/HookName.
	HookName = "berth/resource-metrics"
	// apiServiceName is the name that Kubernetes demands.
	apiServiceName = "v1beta1.metrics.k8s.io"
	// The priorities are those of metrics-server's APIService.
	groupPriority, versionPriority = 100, 100
)

// Deps are the dependencies of Install. All are required.
type Deps struct {
	// Informers are those of the API server itself, which starts them.
	Informers informers.SharedInformerFactory
	// Connections is how kubelets are reached.
	Connections kubeletclient.ConnectionInfoGetter
	Clock       clock.Clock
}

// Install adds the group to server, which must not run yet.
func Install(server *genericapiserver.GenericAPIServer, deps Deps) error {
	if deps.Informers == nil || deps.Connections == nil || deps.Clock == nil {
		return errors.New("resourcemetrics: Deps.Informers, Connections and Clock are required")
	}
	nodes, pods := deps.Informers.Core().V1().Nodes().Lister(), deps.Informers.Core().V1().Pods().Lister()
	kubelets := newKubelets(deps.Connections, deps.Clock)
	scheme := newScheme()
	group := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, metav1.ParameterCodec, serializer.NewCodecFactory(scheme))
	group.VersionedResourcesStorageMap[v1beta1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"nodes": &nodeStorage{TableConvertor: table{}, nodes: nodes, kubelets: kubelets},
		"pods":  &podStorage{TableConvertor: table{}, pods: pods, nodes: nodes, kubelets: kubelets},
	}
	if err := server.InstallAPIGroup(&group); err != nil {
		return fmt.Errorf("install %s: %w", metrics.GroupName, err)
	}
	return nil
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	return scheme
}

// Hook registers the group with the aggregator, unless another server has it.
func Hook(hook genericapiserver.PostStartHookContext) error {
	client, err := aggregator.NewForConfig(restclient.CopyConfig(hook.LoopbackClientConfig))
	if err != nil {
		return fmt.Errorf("create client for %s: %w", apiServiceName, err)
	}
	err = bootstrap.Retry(hook.Context, func(ctx context.Context) error {
		_, err := client.APIServices().Create(ctx, apiService(), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("register %s: %w", apiServiceName, err)
	}
	return nil
}

// apiService has no Service: the API server itself serves the group.
func apiService() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: apiServiceName},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: metrics.GroupName, Version: v1beta1.SchemeGroupVersion.Version,
			GroupPriorityMinimum: groupPriority, VersionPriority: versionPriority,
		},
	}
}
