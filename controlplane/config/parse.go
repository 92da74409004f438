package config

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/controlplane/pki"
)

// Parse parses and validates a command line, without the program's name. If the
// command line requests help, it writes that to help and returns pflag.ErrHelp.
func Parse(args []string, help io.Writer) (*Config, error) {
	c := &Config{}
	flags := pflag.NewFlagSet("berth-controlplane", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(help)
	flags.StringVar(&c.DataDir, "data-dir", "/var/lib/berth", "directory of pki, kubeconfigs and etcd")
	flags.StringVar(&c.RunDir, "run-dir", "/run/berth", "directory of sockets; a short path")
	flags.IntVar(&c.APIPort, "api-port", 6443, "TCP port of the API server on every bind address")
	flags.StringArrayVar(&c.BindAddresses, "bind-address", []string{"127.0.0.1"},
		"address the API server listens on; repeatable; kubeconfigs point to the first")
	flags.IntVar(&c.ListenerFD, "listener-fd", 0,
		"descriptor of an inherited TCP socket that the API server also serves on, such as one of another network namespace; 0: none")
	flags.StringVar(&c.AdvertiseAddress, "advertise-address", "",
		"address at which pods reach the API server (default: the first bind address that is not loopback)")
	flags.StringVar(&c.ServiceCIDR, "service-cidr", "10.96.0.0/16", "range of Service addresses, or one of each family")
	flags.StringVar(&c.PodCIDR, "pod-cidr", "10.88.0.0/16", "range of pod addresses, or one of each family")
	flags.StringVar(&c.NodeName, "node-name", "berth", "name of this machine's node")
	flags.StringVar(&c.NodeIP, "node-ip", "", "address at which the API server reaches the kubelet")
	flags.StringVar(&c.RuntimeConfig, "runtime-config", "", "versions and resources of the API to turn on or off: resource.k8s.io/v1beta1=true,…")
	flags.StringVar(&c.FeatureGates, "feature-gates", "", "features of Kubernetes to turn on or off: NAME=true,…")
	flags.BoolVar(&c.Hardened, "hardened", false, "refuse Pods that are not restricted, outside of kube-system, and Services with external addresses")
	flags.BoolVar(&c.APIOnly, "api-only", false, "run no scheduler, and of the controllers those of garbage and namespaces alone")
	flags.StringVar(&c.StartLock, "start-lock", "", "file that other clusters lock, shared, until their Nodes are ready: the controller manager and\n"+
		"the scheduler wait for them, 3 s at most")
	flags.DurationVar(&c.CertificateLifetime, "certificate-lifetime", pki.DefaultLife,
		"how long certificates are valid; they are renewed when a third of it is left")
	flags.StringVar(&c.LogLevel, "log-level", "warn", "debug, info, warn or error")
	flags.BoolVar(&c.UnsafeNoFsync, "unsafe-no-fsync", false,
		"etcd skips fsync: for tests only, a power cut loses the cluster")
	flags.StringVar(&c.DatabaseChecker, "database-checker", "",
		"program that says whether a database is whole, as `containerd check-database FILE` does: it is asked about etcd's after a crash,\n"+
			"and when etcd's log is damaged")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}
