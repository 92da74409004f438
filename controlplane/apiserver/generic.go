package apiserver

import (
	"fmt"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	definitions "k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubeapis "k8s.io/kubernetes/pkg/controlplane"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	"k8s.io/utils/clock"
)

// informerResync is the period in which the server's own informers call their handlers again, as upstream's.
const informerResync = 10 * time.Minute

// newConfig returns the configuration of the three API servers that are one. It is upstream's app.NewConfig with a generic
// configuration of ours.
func newConfig(options options.CompletedOptions) (*app.Config, error) {
	generic, err := newGeneric(options)
	if err != nil {
		return nil, err
	}
	config := &app.Config{Options: options}
	kube, resolver, initializers, err := app.CreateKubeAPIServerConfig(options, generic.config, generic.informers, generic.storage)
	if err != nil {
		return nil, fmt.Errorf("configure Kubernetes' own resources: %w", err)
	}
	config.KubeAPIs = kube
	of := kube.ControlPlane
	authentication := webhook.NewDefaultAuthenticationInfoResolverWrapper(of.ProxyTransport, of.Generic.EgressSelector, of.Generic.LoopbackClientConfig,
		of.Generic.TracerProvider)
	config.ApiExtensions, err = controlplane.CreateAPIExtensionsConfig(*of.Generic, of.VersionedInformers, initializers, options.CompletedOptions,
		options.MasterCount, resolver, authentication)
	if err != nil {
		return nil, fmt.Errorf("configure custom resources: %w", err)
	}
	config.Aggregator, err = controlplane.CreateAggregatorConfig(*of.Generic, options.CompletedOptions, of.VersionedInformers, resolver,
		of.ProxyTransport, of.PeerProxy, initializers)
	if err != nil {
		return nil, fmt.Errorf("configure aggregated API servers: %w", err)
	}
	return config, nil
}

// generic is what the three API servers share.
type generic struct {
	config    *genericapiserver.Config
	informers informers.SharedInformerFactory
	storage   *serverstorage.DefaultStorageFactory
}

// newGeneric returns what upstream's BuildGenericConfig does, but for the certificate by which the server reaches itself:
// see applyLoopback. A test compares the two.
func newGeneric(o options.CompletedOptions) (*generic, error) {
	g := &generic{config: genericapiserver.NewConfig(legacyscheme.Codecs)}
	resources := kubeapis.DefaultAPIResourceConfigSource()
	g.config.Flagz, g.config.MergedResourceConfig = o.Flagz, resources
	var client kubernetes.Interface
	steps := []struct {
		name  string
		apply func() error
	}{
		{"general options", func() error { return o.GenericServerRunOptions.ApplyTo(g.config) }},
		{"its port", func() error { return o.SecureServing.SecureServingOptions.ApplyTo(&g.config.SecureServing) }},
		{"its way to itself", func() error { return applyLoopback(g.config, clock.RealClock{}) }},
		{"its client of itself", func() (err error) { client, err = g.newClient(); return err }},
		{"features", func() error { return o.Features.ApplyTo(g.config, client, g.informers) }},
		{"API groups", func() error { return o.APIEnablement.ApplyTo(g.config, resources, legacyscheme.Scheme) }},
		{"egress", func() error { return o.EgressSelector.ApplyTo(g.config) }},
		{"traces", func() error { return o.Traces.ApplyTo(g.config.EgressSelector, g.config) }},
		{"storage", func() error { return g.applyStorage(o) }},
		{"authentication", func() error { return g.applyAuthentication(o, client) }},
		{"authorization", func() error { return g.applyAuthorization(o) }},
		{"audit", func() error { return o.Audit.ApplyTo(g.config) }},
	}
	for _, step := range steps {
		if err := step.apply(); err != nil {
			return nil, fmt.Errorf("configure %s of the API server: %w", step.name, err)
		}
	}
	g.config.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	return g, nil
}

// newClient returns a client of the server itself, and makes the informers that use it.
func (g *generic) newClient() (kubernetes.Interface, error) {
	config := g.config.LoopbackClientConfig
	config.ContentType = runtime.ContentTypeProtobuf
	config.DisableCompression = true
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	g.informers = informers.NewSharedInformerFactoryWithOptions(client, informerResync, informers.WithTransform(func(object any) (any, error) {
		if accessor, err := meta.Accessor(object); err == nil {
			accessor.SetManagedFields(nil) // nothing in the server reads them from an informer
		}
		return object, nil
	}))
	return client, nil
}

// applyStorage describes the API, and configures where its objects are stored.
func (g *generic) applyStorage(o options.CompletedOptions) (err error) {
	types := definitions.GetOpenAPIDefinitionsWithoutDisabledFeatures(generated.GetOpenAPIDefinitions)
	namer := openapi.NewDefinitionNamer([]*runtime.Scheme{legacyscheme.Scheme, apiextensions.Scheme, aggregatorscheme.Scheme}...)
	g.config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(types, namer)
	g.config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(types, namer)
	g.config.OpenAPIConfig.Info.Title, g.config.OpenAPIV3Config.Info.Title = "Kubernetes", "Kubernetes"
	g.config.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"))

	if g.config.EgressSelector != nil {
		o.Etcd.StorageConfig.Transport.EgressLookup = g.config.EgressSelector.Lookup
	}
	o.Etcd.StorageConfig.Transport.TracerProvider = g.config.TracerProvider
	factory := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(g.config.EffectiveVersion)
	factory.APIResourceConfig = g.config.MergedResourceConfig
	factory.DefaultResourceEncoding.SetEffectiveVersion(g.config.EffectiveVersion)
	if g.storage, err = factory.Complete(o.Etcd).New(); err != nil {
		return err
	}
	g.storage.StorageConfig.StorageObjectCountTracker = g.config.StorageObjectCountTracker
	return o.Etcd.ApplyWithStorageFactoryTo(g.storage, g.config)
}

func (g *generic) applyAuthentication(o options.CompletedOptions, client kubernetes.Interface) error {
	c := g.config
	return o.Authentication.ApplyTo(wait.ContextForChannel(c.DrainedNotify()), &c.Authentication, c.SecureServing, c.EgressSelector,
		c.OpenAPIConfig, c.OpenAPIV3Config, client, g.informers, c.APIServerID)
}

func (g *generic) applyAuthorization(o options.CompletedOptions) (err error) {
	c := g.config
	// The flags turn RBAC on, so its hook stays as it is.
	c.Authorization.Authorizer, c.RuleResolver, _, err = controlplane.BuildAuthorizer(wait.ContextForChannel(c.DrainedNotify()), o.CompletedOptions,
		c.EgressSelector, c.APIServerID, g.informers)
	return err
}
