package storage

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
)

// Share returns the options of a getter with storages over the connection. isCached says which resources have a cache for watches. With
// the feature gate AllowUnsafeMalformedObjectDeletion, which needs other storages, the options stay as they are.
func (c *Connection) Share(of generic.RESTOptionsGetter, isCached func(resource schema.GroupResource) bool) generic.RESTOptionsGetter {
	if utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion) {
		return of
	}
	return getter{RESTOptionsGetter: of, connection: c, isCached: isCached}
}

type getter struct {
	generic.RESTOptionsGetter
	connection *Connection
	isCached   func(resource schema.GroupResource) bool
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g getter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	if options.Decorator = g.connection.newStorage; g.isCached(resource) {
		options.Decorator = g.connection.newCachedStorage
	}
	return options, nil
}

// newStorage is a generic.StorageDecorator: it returns the storage of a resource, and what ends it, which may be called more than once.
func (c *Connection) newStorage(config *storagebackend.ConfigForResource, resourcePrefix string, _ func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	var compactor etcd3.Compactor
	if config.CompactionInterval != 0 { // there is one for each etcd; it ends with the process
		compactor = etcd3.StartCompactorPerEndpoint(c.client, config.CompactionInterval)
	}
	transformer := config.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	versioner := storage.APIObjectVersioner{}
	decoder := reportingDecoder{etcd3.NewDefaultDecoder(config.Codec, versioner), c.unreadable}
	client := c.newClient()
	store, err := etcd3.New(client, compactor, config.Codec, newFunc, newListFunc, config.Prefix, resourcePrefix, config.GroupResource,
		reportingTransformer{transformer, c.unreadable}, config.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return store, sync.OnceFunc(func() {
		store.Close()
		_ = client.Close() // of its watches, not of the connection
	}), nil
}

// newCachedStorage is newStorage with a cache, which serves lists and watches.
func (c *Connection) newCachedStorage(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	store, destroy, err := c.newStorage(config, resourcePrefix, keyFunc, newFunc, newListFunc, attributes, triggers, indexers)
	if err != nil {
		return nil, nil, err
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: config.GroupResource, EventsHistoryWindow: config.EventsHistoryWindow,
		ResourcePrefix: resourcePrefix, KeyFunc: keyFunc, NewFunc: newFunc, NewListFunc: newListFunc, GetAttrsFunc: attributes,
		IndexerFuncs: triggers, Indexers: indexers, Codec: config.Codec,
	})
	if err != nil {
		destroy()
		return nil, nil, err
	}
	delegator := cacher.NewCacheDelegator(cached, store)
	return delegator, sync.OnceFunc(func() {
		delegator.Stop()
		cached.Stop()
		destroy()
	}), nil
}
