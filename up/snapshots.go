package up

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/binder"
	"github.com/berth-dev/berth/provision/snapshot/crd"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/groupbinder"
)

// snapshotsName is the name of the component that binds VolumeSnapshots and groups of them.
const snapshotsName = "snapshots"

// annDefinition, on a CustomResourceDefinition that `berth up` created, has the release that it is from.
const annDefinition = "berth.dev/definition"

// provisionClients are clients with the identity of what provisions volumes and takes snapshots.
type provisionClients struct {
	core      kubernetes.Interface
	objects   dynamic.Interface
	snapshots api.Client
	groups    groupapi.Client
}

func (c *Cluster) provisionClients() (clients provisionClients, err error) {
	const part = "provision"
	if clients.core, err = c.client(part); err != nil {
		return provisionClients{}, err
	}
	config, err := clientConfig(c.Kubeconfig(part))
	if err != nil {
		return provisionClients{}, err
	}
	if clients.objects, err = dynamic.NewForConfig(config); err != nil {
		return provisionClients{}, fmt.Errorf("create an API client of %s: %w", part, err)
	}
	if clients.snapshots, err = api.NewClient(config); err != nil {
		return provisionClients{}, err
	}
	clients.groups, err = groupapi.NewClient(config)
	return clients, err
}

// newSnapshotBinders returns the controllers of VolumeSnapshots and of groups of them. They first create the definitions and
// the classes of the cluster's own driver, which the start of the cluster does not wait for.
func (c *Cluster) newSnapshotBinders() (runFunc, error) {
	clients, err := c.provisionClients()
	if err != nil {
		return nil, err
	}
	config, err := clientConfig(c.ownerKubeconfig())
	if err != nil {
		return nil, err
	}
	admin, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	registry := c.controllerMetrics.New(snapshotsName)
	single, err := binder.New(binder.Deps{
		Client: clients.core, Snapshots: clients.snapshots, Dynamic: clients.objects, Timeline: c.timeline, Logger: c.logger, Clock: c.clock, Registerer: registry,
	}, binder.Config{})
	if err != nil {
		return nil, err
	}
	grouped, err := groupbinder.New(groupbinder.Deps{
		Client: clients.core, Snapshots: clients.snapshots, Groups: clients.groups, Dynamic: clients.objects, Timeline: c.timeline,
		Logger: c.logger, Clock: c.clock, Registerer: registry,
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := c.applySnapshotDefinitions(ctx, admin); err != nil {
			return err
		}
		if err := errors.Join(snapshot.WaitServed(ctx, clients.snapshots, clients.objects, c.logger),
			snapshot.WaitGroupsServed(ctx, clients.groups, clients.objects, c.logger)); err != nil {
			return err
		}
		for version, class := range map[schema.GroupVersionResource]*unstructured.Unstructured{
			api.GroupVersion.WithResource(api.ResourceClasses):           csidriver.VolumeSnapshotClass(),
			groupapi.GroupVersion.WithResource(groupapi.ResourceClasses): csidriver.VolumeGroupSnapshotClass(),
		} {
			if err := applyOne(ctx, admin.Resource(version), class); err != nil {
				return err
			}
		}
		group, ctx := errgroup.WithContext(ctx)
		group.Go(contain.Func("up.snapshots", "", func() error { return single.Start(ctx) }))
		group.Go(contain.Func("up.snapshots", "", func() error { return grouped.Start(ctx) }))
		return group.Wait()
	}, nil
}

// applySnapshotDefinitions creates the definitions of VolumeSnapshots, and updates those that an earlier release of Berth
// created. Those that a user created are left as they are.
func (c *Cluster) applySnapshotDefinitions(ctx context.Context, admin dynamic.Interface) error {
	definitions := admin.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	outdated := map[string]bool{}
	for _, name := range crd.Names() {
		found, err := definitions.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			outdated[name] = true
		case err != nil:
			return fmt.Errorf("get CustomResourceDefinition %q: %w", name, err)
		default:
			version, ours := found.GetAnnotations()[annDefinition]
			outdated[name] = ours && version != crd.Version
		}
	}
	for name, apply := range outdated {
		if !apply {
			delete(outdated, name)
		}
	}
	if len(outdated) == 0 {
		return nil
	}
	all, err := crd.Definitions()
	if err != nil {
		return err
	}
	for _, definition := range all {
		if !outdated[definition.GetName()] {
			continue
		}
		annotations := definition.GetAnnotations()
		annotations[annDefinition] = crd.Version
		definition.SetAnnotations(annotations)
		if err := applyOne(ctx, definitions, definition); err != nil {
			return err
		}
	}
	return nil
}
