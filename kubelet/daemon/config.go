package daemon

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/settings"
	"github.com/berth-dev/berth/timeline"
)

// Config is what a command line says besides the configuration of the kubelet. It has many fields because a machine has many
// properties that only its administrator knows.
type Config struct {
	// Settings are those of the configuration.
	Settings *settings.Settings
	// Kubeconfig names the API server and the node's identity; without one the kubelet is standalone. BootstrapKubeconfig, if
	// set, may request an identity while Kubeconfig does not exist or is not valid; Kubeconfig is written then.
	Kubeconfig, BootstrapKubeconfig string
	// CertDir holds the certificates; pki below RootDir if empty.
	CertDir string
	RootDir string
	// NodeName is the Node's name; the machine's host name if empty.
	NodeName string
	// Addresses says which addresses the Node has.
	Addresses AddressRule
	// Labels are those of the Node when it is registered.
	Labels map[string]string
	// ExternalCloud says that the cloud's controller manager initialises the Node.
	ExternalCloud bool
	// LockFile and ExitOnLockContention are those of agent.LockConfig.
	LockFile             string
	ExitOnLockContention bool
	// RuntimeCgroups is the cgroup of the container runtime, for statistics.
	RuntimeCgroups string
	// CredentialProviders and CredentialProvidersDir are those of agent.ImageConfig.
	CredentialProviders, CredentialProvidersDir string
	// RequireRuntime ends the start where the container runtime's socket does not accept connections; otherwise the kubelet waits
	// for it.
	RequireRuntime bool
	// ClusterCA accepts client certificates of the cluster's CA if the configuration names no CA.
	ClusterCA bool
	// ServeNodeIP has the server listen on the Node's address alone.
	ServeNodeIP bool
}

// AddressRule says which addresses the Node has.
type AddressRule struct {
	// IPs are the addresses, the primary one first. One that is 0.0.0.0 or :: chooses the default address of its family.
	IPs []net.IP
	// ServerRoute chooses the local address of connections to the API server in place of the default address.
	ServerRoute bool
	// SecondRoute, if set, is a URL like that of the API server: the Node also has the local address of connections to it, if that
	// is of another family than the only address found. Without such a route Second is the other address, if it is not nil.
	SecondRoute string
	Second      net.IP
}

// Deps are what Run works with; all may be nil.
type Deps struct {
	Timeline *timeline.Recorder
	// Collectors are served at /metrics beside the kubelet's own.
	Collectors []prometheus.Collector
	// Processes serve the metrics of other processes of the node, by their names, at /metrics/processes/NAME.
	Processes map[string]http.Handler
	// Flags are the command line's flags by name, for /flagz.
	Flags map[string]string
	// TracerProvider takes spans where no destination is configured.
	TracerProvider trace.TracerProvider
	// Exits, if set, has the exit codes of containers that ended while the runtime was down.
	Exits pleg.ExitRecorder
	// OnStop, if set, is called when the context of Run and the kubelet with it have ended: the agent can still stop its Pods.
	OnStop func(a *agent.Agent) error
	// OnIdle is called when no Pod has changed for some seconds.
	OnIdle func() error
	Logger *slog.Logger
	Clock  clock.WithTicker
}

func (d *Deps) complete() {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
}

func (c *Config) complete() error {
	if c.Settings == nil {
		return errors.New("daemon: Config.Settings is required")
	}
	if c.RootDir == "" {
		c.RootDir = settings.DefaultRootDir
	}
	root, err := filepath.Abs(c.RootDir)
	if err != nil {
		return err
	}
	c.RootDir = root
	if c.CertDir == "" {
		c.CertDir = filepath.Join(root, "pki")
	}
	if c.CertDir, err = filepath.Abs(c.CertDir); err != nil {
		return err
	}
	if c.BootstrapKubeconfig != "" && c.Kubeconfig == "" {
		return errors.New("a bootstrap kubeconfig needs a kubeconfig, which it writes")
	}
	return nil
}

// cloud returns what the Node's cloud is to know.
func (c *Config) cloud() agent.CloudConfig {
	return agent.CloudConfig{External: c.ExternalCloud, NodeIPs: c.Addresses.fixed(), ChosenIPs: len(c.Addresses.IPs) > 0}
}

// standalone reports whether there is no API server.
func (c *Config) standalone() bool { return c.Kubeconfig == "" }
