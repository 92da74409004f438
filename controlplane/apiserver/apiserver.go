// Package apiserver runs kube-apiserver inside this process.
package apiserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	registry "k8s.io/apiserver/pkg/registry/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/berth-dev/berth/controlplane/admission"
	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/audit"
	"github.com/berth-dev/berth/controlplane/bootstrap"
	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/contain"
	"github.com/berth-dev/berth/controlplane/encryption"
	"github.com/berth-dev/berth/controlplane/etcd"
	"github.com/berth-dev/berth/controlplane/pki"
	"github.com/berth-dev/berth/controlplane/storage"
)

// readyzPeriod is how often /readyz is requested during a start: the API server has
// no event for "ready" that an embedder could wait for.
const readyzPeriod = 10 * time.Millisecond

// Upstream renews both every 10 s, which are writes to the store, for the sake of API servers that come and go. This one is
// alone.
const (
	// endpointPeriod is how often the endpoints of the Service default/kubernetes are checked: a user may change them.
	endpointPeriod = time.Minute
	// identityPeriod is how often the Lease that identifies this server is renewed. It lasts for an hour.
	identityPeriod = 15 * time.Minute
)

// cipherSuites are those of TLS 1.2 with authenticated encryption and forward secrecy; TLS 1.3 has no others.
const cipherSuites = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256," +
	"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"

// authentication allows requests without credentials for the health of the server
// and for nothing else.
const authentication = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
`

// Deps are the dependencies of a Server.
type Deps struct {
	// Listener is where it serves; the server closes it.
	Listener net.Listener
	// Admin is a client of this server, which requests its readiness.
	Admin kubernetes.Interface
	// Used is called for each request that is not one of an idle cluster.
	Used func()
	// NodeReported is called after each request by which a kubelet reports the status of its Node.
	NodeReported func()
	// Unreadable is called each time that a stored object cannot be decoded or decrypted, by any goroutine. It must return at once.
	Unreadable func()
}

// Server is the API server. Use it once: kube-apiserver keeps process-wide state.
type Server struct {
	deps   Deps
	config *config.Config
}

// New returns a server that Run starts. The files of the PKI must exist by then.
func New(deps Deps, config *config.Config) *Server { return &Server{deps: deps, config: config} }

// Run serves until ctx ends, then drains requests and stops; ready is called
// once, when /readyz is ok.
func (s *Server) Run(ctx context.Context, ready func()) error {
	file := s.config.AuthenticationConfigFile()
	if err := atomicfile.Write(file, []byte(authentication)); err != nil {
		return err
	}
	for _, prepare := range []func(*config.Config) error{admission.Prepare, audit.Prepare} {
		if err := prepare(s.config); err != nil {
			return err
		}
	}
	completed, err := s.options(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go contain.Guard("apiserver.waitReady", func() {
		defer close(watched)
		if s.waitReady(ctx) == nil {
			ready()
		}
	})()
	err = s.serve(ctx, completed)
	cancel()
	<-watched
	return err
}

// serve is upstream's app.Run, except that it replaces the two hooks that make every
// start a second longer (see package bootstrap), and what else a start need not do (newGeneric, installOpenAPI).
func (s *Server) serve(ctx context.Context, options options.CompletedOptions) error {
	controlplane.IdentityLeaseRenewIntervalPeriod = identityPeriod
	config, err := newConfig(options)
	if err != nil {
		return fmt.Errorf("create configuration: %w", err)
	}
	config.KubeAPIs.EndpointReconcilerConfig.Interval = endpointPeriod
	config.KubeAPIs.ControlPlane.Generic.DisabledPostStartHooks.Insert(bootstrap.Replaced()...)
	config.KubeAPIs.ControlPlane.Generic.SkipOpenAPIInstallation = true
	connection, err := s.shareConnection(config)
	if err != nil {
		return err
	}
	defer connection.Close()
	reportUse(config.Aggregator.GenericConfig, s.deps.Used, s.deps.NodeReported) // all requests reach the aggregator first
	completed, err := config.Complete()
	if err != nil {
		return fmt.Errorf("complete configuration: %w", err)
	}
	server, err := app.CreateServerChain(completed)
	if err != nil {
		return fmt.Errorf("create server: %w", err)
	}
	if err := server.GenericAPIServer.AddPostStartHook(bootstrap.HookName, bootstrap.Hook); err != nil {
		return fmt.Errorf("add bootstrap: %w", err)
	}
	if err := s.installMetrics(server.GenericAPIServer, completed); err != nil {
		return err
	}
	if err := installOpenAPI(server.GenericAPIServer, config.KubeAPIs.ControlPlane.Generic); err != nil {
		return err
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare server: %w", err)
	}
	return prepared.Run(ctx)
}

// shareConnection has all resources use one connection to etcd, which the caller closes.
func (s *Server) shareConnection(config *app.Config) (*storage.Connection, error) {
	sizes, err := genericoptions.ParseWatchCacheSizes(config.Options.Etcd.WatchCacheSizes)
	if err != nil {
		return nil, fmt.Errorf("configure the cache of watches: %w", err)
	}
	connection, err := storage.Open(etcd.Endpoint(s.config.EtcdSocket()), s.deps.Unreadable)
	if err != nil {
		return nil, err
	}
	isCached := func(resource schema.GroupResource) bool {
		size, known := sizes[resource]
		return config.Options.Etcd.EnableWatchCache && (size > 0 || !known)
	}
	for _, of := range []*registry.RESTOptionsGetter{
		&config.KubeAPIs.ControlPlane.Generic.RESTOptionsGetter, &config.ApiExtensions.GenericConfig.RESTOptionsGetter,
		&config.ApiExtensions.ExtraConfig.CRDRESTOptionsGetter, &config.Aggregator.GenericConfig.RESTOptionsGetter,
	} {
		*of = connection.Share(*of, isCached)
	}
	return connection, nil
}

func (s *Server) waitReady(ctx context.Context) error {
	rest := s.deps.Admin.Discovery().RESTClient()
	return wait.PollUntilContextCancel(ctx, readyzPeriod, true, func(ctx context.Context) (bool, error) {
		return rest.Get().AbsPath("/readyz").Do(ctx).Error() == nil, nil
	})
}

func (s *Server) options(ctx context.Context) (options.CompletedOptions, error) {
	o := options.NewServerRunOptions()
	flags := o.Flags()
	all := flags.FlagSet("all")
	for _, set := range flags.FlagSets {
		if set != all {
			all.AddFlagSet(set)
		}
	}
	if err := all.Parse(Args(s.config)); err != nil {
		return options.CompletedOptions{}, fmt.Errorf("parse flags: %w", err)
	}
	o.SecureServing.Listener = s.deps.Listener
	o.SecureServing.BindPort = s.config.APIPort
	completed, err := o.Complete(ctx)
	if err != nil {
		return options.CompletedOptions{}, fmt.Errorf("complete options: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return options.CompletedOptions{}, fmt.Errorf("validate options: %w", utilerrors.NewAggregate(errs))
	}
	return completed, nil
}

// Args are kube-apiserver's flags for c. Address and port are not among them:
// they come with the listener.
func Args(c *config.Config) []string {
	file := func(name string) string { return filepath.Join(c.PKIDir(), name) }
	args := []string{
		"--etcd-servers=" + etcd.Endpoint(c.EtcdSocket()),
		"--service-cluster-ip-range=" + c.ServiceCIDR,
		"--allow-privileged=true",
		"--profiling=false",

		"--tls-cert-file=" + file(pki.APIServer+".crt"),
		"--tls-private-key-file=" + file(pki.APIServer+".key"),
		"--tls-min-version=VersionTLS12",
		"--tls-cipher-suites=" + cipherSuites,
		"--client-ca-file=" + file(pki.CA+".crt"),
		"--authentication-config=" + c.AuthenticationConfigFile(),
		"--authorization-mode=Node,RBAC",
		// It has no effect without a token in kube-system; with one, machines can join (berth node).
		"--enable-bootstrap-token-auth=true",

		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + file(pki.ServiceAccount+".pub"),
		"--service-account-signing-key-file=" + file(pki.ServiceAccount+".key"),

		"--kubelet-certificate-authority=" + file(pki.CA+".crt"),
		"--kubelet-client-certificate=" + file(pki.APIServerKubeletClient),
		"--kubelet-client-key=" + file(pki.APIServerKubeletClient),
		"--kubelet-preferred-address-types=InternalIP,Hostname",

		// Aggregated API servers and webhooks are reached at their endpoints: nothing
		// here needs a Service proxy on this machine.
		"--enable-aggregator-routing=true",
		"--proxy-client-cert-file=" + file(pki.FrontProxyClient+".crt"),
		"--proxy-client-key-file=" + file(pki.FrontProxyClient+".key"),
		"--requestheader-client-ca-file=" + file(pki.FrontProxyCA+".crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",

		// Without these a stop waits up to a minute for open watches.
		"--shutdown-send-retry-after=true",
		"--shutdown-watch-termination-grace-period=1s",
	}
	args = slices.Concat(args, admission.Args(c), audit.Args(c), encryption.Args(c))
	if c.RuntimeConfig != "" {
		args = append(args, "--runtime-config="+c.RuntimeConfig)
	}
	if c.FeatureGates != "" { // the components of this process share the gates
		args = append(args, "--feature-gates="+c.FeatureGates)
	}
	if _, err := os.Stat(file(pki.ServiceAccountFormer + ".pub")); err == nil {
		args = append(args, "--service-account-key-file="+file(pki.ServiceAccountFormer+".pub"))
	}
	if advertise := c.Advertise(); advertise != "" {
		return append(args, "--advertise-address="+advertise)
	}
	return append(args, "--advertise-address="+c.BindAddresses[0], "--endpoint-reconciler-type=none")
}
