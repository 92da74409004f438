package groupapi

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/provision/snapshot/api"
)

// The clients of the kinds.
type (
	GroupsClient   = api.Objects[*VolumeGroupSnapshot, *VolumeGroupSnapshotList]
	ContentsClient = api.Objects[*VolumeGroupSnapshotContent, *VolumeGroupSnapshotContentList]
	ClassesClient  = api.Objects[*VolumeGroupSnapshotClass, *VolumeGroupSnapshotClassList]
)

// Client is a client for the API group.
type Client interface {
	VolumeGroupSnapshots(namespace string) GroupsClient
	VolumeGroupSnapshotContents() ContentsClient
	VolumeGroupSnapshotClasses() ClassesClient
}

type client struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// Scheme returns a scheme with the kinds of the group.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for kind, object := range map[string]runtime.Object{
		KindGroup: &VolumeGroupSnapshot{}, KindGroup + "List": &VolumeGroupSnapshotList{},
		KindContent: &VolumeGroupSnapshotContent{}, KindContent + "List": &VolumeGroupSnapshotContentList{},
		"VolumeGroupSnapshotClass": &VolumeGroupSnapshotClass{}, "VolumeGroupSnapshotClassList": &VolumeGroupSnapshotClassList{},
	} {
		scheme.AddKnownTypeWithName(GroupVersion.WithKind(kind), object)
	}
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return scheme
}

// NewClient returns a client of the cluster that config names.
func NewClient(config *rest.Config) (Client, error) {
	scheme := Scheme()
	restClient, err := api.NewRESTClient(config, GroupVersion, scheme)
	if err != nil {
		return nil, fmt.Errorf("create an API client for group snapshots: %w", err)
	}
	return &client{rest: restClient, parameters: runtime.NewParameterCodec(scheme)}, nil
}

// VolumeGroupSnapshots implements Client.
func (c *client) VolumeGroupSnapshots(namespace string) GroupsClient {
	return gentype.NewClientWithList(ResourceGroups, c.rest, c.parameters, namespace,
		func() *VolumeGroupSnapshot { return &VolumeGroupSnapshot{} }, func() *VolumeGroupSnapshotList { return &VolumeGroupSnapshotList{} })
}

// VolumeGroupSnapshotContents implements Client.
func (c *client) VolumeGroupSnapshotContents() ContentsClient {
	return gentype.NewClientWithList(ResourceContents, c.rest, c.parameters, "",
		func() *VolumeGroupSnapshotContent { return &VolumeGroupSnapshotContent{} },
		func() *VolumeGroupSnapshotContentList { return &VolumeGroupSnapshotContentList{} })
}

// VolumeGroupSnapshotClasses implements Client.
func (c *client) VolumeGroupSnapshotClasses() ClassesClient {
	return gentype.NewClientWithList(ResourceClasses, c.rest, c.parameters, "",
		func() *VolumeGroupSnapshotClass { return &VolumeGroupSnapshotClass{} },
		func() *VolumeGroupSnapshotClassList { return &VolumeGroupSnapshotClassList{} })
}
