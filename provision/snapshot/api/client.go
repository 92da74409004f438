package api

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// Objects is a client for the objects of one kind, of one namespace if the kind has namespaces.
type Objects[T, L runtime.Object] interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	DeleteCollection(ctx context.Context, options metav1.DeleteOptions, list metav1.ListOptions) error
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// The clients of the kinds.
type (
	SnapshotsClient = Objects[*VolumeSnapshot, *VolumeSnapshotList]
	ContentsClient  = Objects[*VolumeSnapshotContent, *VolumeSnapshotContentList]
	ClassesClient   = Objects[*VolumeSnapshotClass, *VolumeSnapshotClassList]
)

// Client is a client for the API group.
type Client interface {
	VolumeSnapshots(namespace string) SnapshotsClient
	VolumeSnapshotContents() ContentsClient
	VolumeSnapshotClasses() ClassesClient
}

type client struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// Scheme returns a scheme with the kinds of the group.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(GroupVersion.WithKind(KindSnapshot), &VolumeSnapshot{})
	scheme.AddKnownTypeWithName(GroupVersion.WithKind("VolumeSnapshotList"), &VolumeSnapshotList{})
	scheme.AddKnownTypeWithName(GroupVersion.WithKind("VolumeSnapshotContent"), &VolumeSnapshotContent{})
	scheme.AddKnownTypeWithName(GroupVersion.WithKind("VolumeSnapshotContentList"), &VolumeSnapshotContentList{})
	scheme.AddKnownTypeWithName(GroupVersion.WithKind("VolumeSnapshotClass"), &VolumeSnapshotClass{})
	scheme.AddKnownTypeWithName(GroupVersion.WithKind("VolumeSnapshotClassList"), &VolumeSnapshotClassList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return scheme
}

// NewClient returns a client of the cluster that config names.
func NewClient(config *rest.Config) (Client, error) {
	scheme := Scheme()
	restClient, err := NewRESTClient(config, GroupVersion, scheme)
	if err != nil {
		return nil, fmt.Errorf("create an API client for snapshots: %w", err)
	}
	return &client{rest: restClient, parameters: runtime.NewParameterCodec(scheme)}, nil
}

// NewRESTClient returns a client for the custom resources of one version of an API group, whose kinds the scheme has.
func NewRESTClient(config *rest.Config, version schema.GroupVersion, scheme *runtime.Scheme) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, "/apis"
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON // as custom resources have it
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	return rest.RESTClientFor(config)
}

// VolumeSnapshots implements Client.
func (c *client) VolumeSnapshots(namespace string) SnapshotsClient {
	return gentype.NewClientWithList(ResourceSnapshots, c.rest, c.parameters, namespace,
		func() *VolumeSnapshot { return &VolumeSnapshot{} }, func() *VolumeSnapshotList { return &VolumeSnapshotList{} })
}

// VolumeSnapshotContents implements Client.
func (c *client) VolumeSnapshotContents() ContentsClient {
	return gentype.NewClientWithList(ResourceContents, c.rest, c.parameters, "",
		func() *VolumeSnapshotContent { return &VolumeSnapshotContent{} },
		func() *VolumeSnapshotContentList { return &VolumeSnapshotContentList{} })
}

// VolumeSnapshotClasses implements Client.
func (c *client) VolumeSnapshotClasses() ClassesClient {
	return gentype.NewClientWithList(ResourceClasses, c.rest, c.parameters, "",
		func() *VolumeSnapshotClass { return &VolumeSnapshotClass{} }, func() *VolumeSnapshotClassList { return &VolumeSnapshotClassList{} })
}
