package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/attachdetach"
	"github.com/berth-dev/berth/internal/metricsserver"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/local"
	"github.com/berth-dev/berth/replicaset"
	"github.com/berth-dev/berth/timeline"
)

type controllersFlags struct {
	kubeconfig, nodeName, volumes, attachNodes, socket, metrics string
	run, drivers                                                []string
	leaderElection, capacity, attach, resize, snapshot          bool
	verbosity                                                   int
}

// controllerNames are the controllers that can be run on their own.
var controllerNames = []string{"provision", "attachdetach", "replicaset", "snapshot"}

func newControllers() *cobra.Command {
	var flags controllersFlags
	cmd := &cobra.Command{
		Use: "controllers", Short: "Run berth's controllers on a cluster you have", Args: noArgs,
		Long: "Runs berth's controllers against any Kubernetes cluster until Ctrl-C. `provision` serves the storage class\n" +
			"berth-local on this machine (create the class with `berth controllers --print-class | kubectl apply -f -`).\n" +
			"`attachdetach` manages the nodes that --attach-nodes selects; no other attach/detach controller may manage them.\n" +
			"`replicaset` replaces the controller of that name in kube-controller-manager: disable that one first.\n" +
			"`snapshot` replaces the snapshot-controller of external-snapshotter; --csi-driver includes the driver's own part.",
		Example: "  berth controllers --kubeconfig admin.kubeconfig\n" +
			"  berth controllers --kubeconfig admin.kubeconfig --csi-driver disks.example.com=/run/disks/csi.sock\n" +
			"  berth controllers --kubeconfig admin.kubeconfig --controllers attachdetach --attach-nodes pool=berth",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if printClass, err := cmd.Flags().GetBool("print-class"); err != nil || printClass {
				return errors.Join(err, printObject(cmd, local.StorageClass()))
			}
			return flags.start(cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.kubeconfig, "kubeconfig", "", "the cluster's kubeconfig (inside a Pod: its own identity)")
	f.StringSliceVar(&flags.run, "controllers", []string{"provision"}, "which to run: "+strings.Join(controllerNames, ", "))
	f.StringVar(&flags.nodeName, "node-name", "", "this machine's Node (default: the host name)")
	f.StringVar(&flags.volumes, "local-volumes-dir", "/var/lib/berth/volumes", "directory of the volumes of class berth-local")
	f.StringVar(&flags.attachNodes, "attach-nodes", "", "label selector of the nodes that attachdetach manages (required with it)")
	f.StringArrayVar(&flags.drivers, "csi-driver", nil, "NAME=SOCKET of a CSI driver to provision and attach volumes with (may be repeated)")
	f.BoolVar(&flags.attach, "csi-attacher", true, "with --csi-driver: attach volumes too (false: the driver has an external-attacher)")
	f.BoolVar(&flags.resize, "csi-resizer", true, "with --csi-driver: expand volumes too (false: the driver has an external-resizer)")
	f.BoolVar(&flags.snapshot, "csi-snapshotter", true, "with --csi-driver: take snapshots too (false: the driver has a csi-snapshotter)")
	f.BoolVar(&flags.leaderElection, "leader-election", true, "run several replicas of which one at a time is active (not for provision, which each node runs)")
	f.StringVar(&flags.socket, "socket", "", socketUsage)
	f.StringVar(&flags.metrics, "metrics-address", "", metricsAddressUsage)
	f.BoolVar(&flags.capacity, "csi-capacity", false, "with --csi-driver: publish CSIStorageCapacity objects for the driver")
	f.IntVarP(&flags.verbosity, "verbosity", "v", 0, verbosityUsage)
	f.Bool("print-class", false, "print the storage class berth-local and exit")
	return cmd
}

func (f controllersFlags) start(cmd *cobra.Command) error {
	for _, name := range f.run {
		if !slices.Contains(controllerNames, name) {
			return usageError{fmt.Errorf("--controllers %q: known are %s", name, strings.Join(controllerNames, ", "))}
		}
	}
	config, err := loadKubeconfig(f.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create an API client: %w", err)
	}
	if len(f.drivers) > 0 && !cmd.Flags().Changed("controllers") {
		f.run = nil // --csi-driver alone runs only that driver's sidecars
	}
	records, err := newTimelineServer(cmd.Context(), f.socket)
	if err != nil {
		return err
	}
	registries := &metricsserver.Registries{}
	var components []component
	for _, name := range slices.Compact(slices.Sorted(slices.Values(f.run))) {
		c, err := f.controller(name, config, client, records.recorder, registries.New(name))
		if err != nil {
			return fmt.Errorf("set up controller %s: %w", name, err)
		}
		components = append(components, c)
	}
	for _, driver := range slices.Compact(slices.Sorted(slices.Values(f.drivers))) {
		c, err := f.csi(driver, config, records.recorder, registries.New("csi "+driver))
		if err != nil {
			return fmt.Errorf("set up --csi-driver %s: %w", driver, err)
		}
		components = append(components, c)
	}
	if err := registries.New("stages").Register(records.stages); err != nil {
		return err
	}
	server, err := newMetricsServer(f.metrics, registries, components, stderrLogger(f.verbosity))
	if err != nil {
		return err
	}
	return runComponents(cmd.Context(), append(components, server, component{
		check: metricsserver.Check{Name: "records"},
		start: func(ctx context.Context) error { return records.run(ctx, registries) },
	}))
}

// controller returns a controller as a component. Those that work for the whole cluster, or for selected nodes,
// run in one replica at a time.
func (f controllersFlags) controller(name string, config *rest.Config, client kubernetes.Interface, recorder *timeline.Recorder,
	registry *prometheus.Registry,
) (component, error) {
	logger := stderrLogger(f.verbosity)
	c := component{check: metricsserver.Check{Name: name}}
	var lease string
	switch name {
	case "replicaset":
		controller, err := replicaset.New(replicaset.Deps{Client: client, Timeline: recorder, Logger: logger, Registerer: registry},
			replicaset.Config{})
		if err != nil {
			return c, err
		}
		lease, c.start = "berth-replicaset", controller.Start
		c.check.Ready, c.check.Healthy = controller.Ready, controller.Healthy
	case "snapshot":
		controller, err := newSnapshotControllers(config, client, recorder, registry, logger)
		if err != nil {
			return c, err
		}
		lease, c.start = "berth-snapshot", controller.Start
		c.check.Ready, c.check.Healthy = controller.Ready, controller.Healthy
	case "attachdetach":
		nodes, controller, err := f.attachdetach(client, recorder, registry, logger)
		if err != nil {
			return c, err
		}
		lease, c.start, c.check.Ready = attachDetachLease(nodes), controller.Start, controller.Ready
	default:
		controller, err := f.provision(client, recorder, registry, logger)
		if err != nil {
			return c, err
		}
		c.start, c.check.Ready = controller.RunContext, controller.Ready
		return c, nil
	}
	if !f.leaderElection {
		return c, nil
	}
	return whileLeading(config, lease, registry, logger, c)
}

// attachdetach manages only the selected nodes: two controllers for one node would undo each other's work.
func (f controllersFlags) attachdetach(client kubernetes.Interface, recorder *timeline.Recorder, registry *prometheus.Registry,
	logger *slog.Logger,
) (labels.Selector, *attachdetach.Controller, error) {
	if f.attachNodes == "" {
		return nil, nil, usageError{errors.New("--attach-nodes is required: select the nodes that no other attach/detach controller manages")}
	}
	nodes, err := labels.Parse(f.attachNodes)
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("--attach-nodes %q: %w", f.attachNodes, err)}
	}
	controller, err := attachdetach.New(attachdetach.Deps{Client: client, Timeline: recorder, Logger: logger, Registerer: registry},
		attachdetach.Config{NodeSelector: nodes})
	if err != nil {
		return nil, nil, err
	}
	logger.Info("attachdetach manages the selected nodes only", "selector", nodes)
	return nodes, controller, nil
}

func (f controllersFlags) provision(client kubernetes.Interface, recorder *timeline.Recorder, registry *prometheus.Registry,
	logger *slog.Logger,
) (*provision.ProvisionController, error) {
	node := f.nodeName
	if node == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("find the host name (or give --node-name): %w", err)
		}
		node = strings.ToLower(host)
	}
	provisioner, err := local.New(local.Deps{Logger: logger}, local.Config{Root: f.volumes, NodeName: node})
	if err != nil {
		return nil, err
	}
	// Each node runs its own instance, because no other machine can create a directory on it: there is no leader to elect.
	return provision.New(client, local.ProvisionerName, provisioner, provision.LeaderElection(false),
		provision.IntentFinalizer(local.IntentFinalizer(node)), provision.Timeline(recorder), provision.Logger(logger),
		provision.Registerer(prometheus.WrapRegistererWith(prometheus.Labels{"provisioner": local.ProvisionerName}, registry)))
}
