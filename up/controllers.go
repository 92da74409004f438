package up

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/local"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/apiwatch"
	"github.com/berth-dev/berth/timeline/remote"
	"github.com/berth-dev/berth/timeline/traces"
)

// localRecords implements page.Records with the timeline of this process.
type localRecords struct{ recorder *timeline.Recorder }

func (r localRecords) Record(_ context.Context, uid types.UID) (timeline.Record, bool, error) {
	record, ok := r.recorder.Record(uid)
	return record, ok, nil
}

// Latest returns the records of a kind that changed last, the newest first.
func (r localRecords) Latest(_ context.Context, kind string, limit int) ([]timeline.Record, error) {
	return r.recorder.Latest(kind, limit), nil
}

// recordsBuffer is how many changes wait for the page.
const recordsBuffer = 4096

// Stages calls each for every change from now on, and for a change of nothing when some were lost, until ctx ends.
func (r localRecords) Stages(ctx context.Context, uid types.UID, ready func(), each func(timeline.Change)) error {
	sub := r.recorder.Subscribe(recordsBuffer)
	defer sub.Stop()
	ready()
	for lost := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-sub.C():
		}
		for _, change := range sub.Drain() {
			if uid == "" || change.Ref.UID == uid {
				each(change)
			}
		}
		if now := sub.Dropped(); now > lost {
			lost = now
			each(timeline.Change{})
		}
	}
}

// applyDefaultObjects applies the objects that every cluster has: the CSIDriver, the storage classes, the runtime
// classes, the Service of DNS.
func (c *Cluster) applyDefaultObjects(ctx context.Context) error {
	config, err := clientConfig(c.ownerKubeconfig())
	if err != nil {
		return err
	}
	var objects []*unstructured.Unstructured
	info, err := c.info()
	if err != nil {
		return err
	}
	defaults := append(c.storageClasses(), csidriver.CSIDriver(), info.ConfigMap())
	defaults = append(defaults, runtimeClasses()...)
	if c.runs(dnsName) {
		dns, err := c.dnsObjects()
		if err != nil {
			return err
		}
		defaults = append(defaults, dns...)
	}
	for _, typed := range defaults {
		object, err := toUnstructured(typed)
		if err != nil {
			return err
		}
		objects = append(objects, object)
	}
	if err := applyBuiltIn(ctx, config, objects); err != nil || c.runs(dnsName) {
		return err
	}
	client, err := newClient(c.ownerKubeconfig())
	if err != nil {
		return err
	}
	return removeDNSObjects(ctx, client)
}

// newDefaultObjects returns the component that applies the objects once, for a node's process that was started again: the one
// before may have ended before it did.
func (c *Cluster) newDefaultObjects() (runFunc, error) {
	return func(ctx context.Context) error {
		if err := c.applyDefaultObjects(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}, nil
}

// client returns an API client with the identity of one component.
func (c *Cluster) client(part string) (kubernetes.Interface, error) {
	return newClient(c.Kubeconfig(part))
}

// newProvisioner returns the controller that provisions the volumes of class berth-local.
func (c *Cluster) newProvisioner() (runFunc, error) {
	client, err := c.client("provision")
	if err != nil {
		return nil, err
	}
	provisioner, err := local.New(local.Deps{Logger: c.logger}, local.Config{Root: c.VolumesDir(), NodeName: c.NodeName})
	if err != nil {
		return nil, err
	}
	controller, err := provision.New(client, local.ProvisionerName, provisioner,
		provision.LeaderElection(false), // the data directory's lock allows one process per cluster
		provision.IntentFinalizer(local.IntentFinalizer(c.NodeName)),
		provision.Timeline(c.timeline), provision.Logger(c.logger),
		provision.Registerer(prometheus.WrapRegistererWith(prometheus.Labels{"provisioner": local.ProvisionerName},
			c.controllerMetrics.New("provision"))))
	if err != nil {
		return nil, err
	}
	return controller.RunContext, nil
}

// newAPIWatch returns the component that records stages from API watches.
func (c *Cluster) newAPIWatch() (runFunc, error) {
	client, err := c.client("timeline")
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return apiwatch.Run(ctx, client, c.timeline, c.clock) }, nil
}

// newTraceExporter returns the component that exports each Pod's stages as a trace, as the OTEL_* variables configure.
func (u *components) newTraceExporter() (runFunc, error) {
	tracer := traces.New(u.tracing, u.cluster.logger)
	return func(ctx context.Context) error { return tracer.Start(ctx, u.cluster.timeline) }, nil
}

// newStageMetrics returns the component that counts the stages for /metrics of the kubelet and of the socket.
func (c *Cluster) newStageMetrics() (runFunc, error) {
	return func(ctx context.Context) error { return c.stageMetrics.Start(ctx, c.timeline) }, nil
}

// newTimelineServer returns the server of the timeline, which `berth explain` of other processes reads.
func (c *Cluster) newTimelineServer() (runFunc, error) {
	listener, err := remote.Listen(c.Socket())
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(c.stageMetrics); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	gatherer := prometheus.Gatherers{registry, &c.controllerMetrics}
	return func(ctx context.Context) error { return remote.Serve(ctx, listener, c.timeline, gatherer) }, nil
}
