package berthtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// The environment variables of envtest that Environment observes.
const (
	existingClusterEnv = "USE_EXISTING_CLUSTER"
	startTimeoutEnv    = "KUBEBUILDER_CONTROLPLANE_START_TIMEOUT"
	stopTimeoutEnv     = "KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT"
	attachOutputEnv    = "KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT"
)

// apiOnlyEnv is the environment variable that sets Environment.APIOnly.
const apiOnlyEnv = "BERTHTEST_API_ONLY"

// apiOnlyFlag is the flag of `berth up` for the same.
const apiOnlyFlag = "--api-only"

const (
	// environmentStopTimeout is how long a cluster has to stop in order unless the user says otherwise: envtest's default.
	environmentStopTimeout = 20 * time.Second
	// fastQPS and fastBurst are the limits of envtest's clients, which some tests read.
	fastQPS   = 1000
	fastBurst = 2000
)

// Environment is a cluster for suites that were written for sigs.k8s.io/controller-runtime/pkg/envtest: the fields, methods and
// environment variables have the same names and meanings, so that the import is all that changes:
//
//	import envtest "github.com/berth-dev/berth/berthtest"
//
// What is different: controllers run, Pods run, garbage is collected and namespaces go away. A suite that expects its Deployments, Nodes and
// Pods as it has written them sets APIOnly. Use an Environment from one goroutine.
// It has many fields because envtest's has them.
type Environment struct {
	// ControlPlane has flags of the API server, and runs kubectl.
	ControlPlane ControlPlane
	// Scheme says which kinds have conversions, for which the CRDs get conversion webhooks. Start sets it to client-go's if it is nil.
	Scheme *runtime.Scheme
	// Config is of a client with all rights; Start sets it. With UseExistingCluster it may be given.
	Config *rest.Config
	// KubeConfig is the same as a kubeconfig file; Start sets it unless it is given.
	KubeConfig []byte
	// CRDInstallOptions and WebhookInstallOptions say what Start installs.
	CRDInstallOptions     CRDInstallOptions
	WebhookInstallOptions WebhookInstallOptions
	// ErrorIfCRDPathMissing makes a path of CRDDirectoryPaths that does not exist an error.
	ErrorIfCRDPathMissing bool
	// CRDs and CRDDirectoryPaths are added to those of CRDInstallOptions. After Start, CRDs has all that it has installed.
	CRDs              []*apiextensionsv1.CustomResourceDefinition
	CRDDirectoryPaths []string
	// DownloadBinaryAssets has Start get the programs of Berth if it does not find them: it builds them, which takes minutes, once for
	// this user. Without it, $BERTH_BUILD=1 does the same.
	DownloadBinaryAssets bool
	// DownloadBinaryAssetsVersion is the Kubernetes version that the suite wants: Start fails if Berth has another minor version.
	DownloadBinaryAssetsVersion string
	// DownloadBinaryAssetsIndexURL has no meaning here: Start fails if it is set, because nothing is downloaded from there.
	DownloadBinaryAssetsIndexURL string
	// BinaryAssetsDirectory is a directory with the program berth and its companions. One that has others, such as
	// kube-apiserver and etcd, is not used, which Start reports on standard error.
	BinaryAssetsDirectory string
	// UseExistingCluster uses the cluster of Config, or of the current kubeconfig; $USE_EXISTING_CLUSTER=true is the same.
	UseExistingCluster *bool
	// ControlPlaneStartTimeout bounds Start; the default is $KUBEBUILDER_CONTROLPLANE_START_TIMEOUT, or 3 minutes.
	ControlPlaneStartTimeout time.Duration
	// ControlPlaneStopTimeout is how long Pods and components have to stop in order before they are killed; the default is
	// $KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT, or 20 seconds.
	ControlPlaneStopTimeout time.Duration
	// APIOnly starts the API server without a node, scheduler and controllers, but for those that collect garbage and delete namespaces: all
	// other objects stay as they are written, as with envtest. $BERTHTEST_API_ONLY=true is the same. envtest does not have this field.
	APIOnly bool
	// AttachControlPlaneOutput prints what `berth up` prints; $KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT=true is the same.
	AttachControlPlaneOutput bool

	running *running
	// madeKubeConfig is what the last start has put into KubeConfig: another start replaces it.
	madeKubeConfig []byte
}

// Start starts a cluster, or connects to an existing one, and installs the CRDs and webhooks. It returns the configuration of a client
// with all rights. After an error nothing is left.
func (e *Environment) Start() (_ *rest.Config, err error) {
	if e.running != nil {
		return nil, errors.New("start the environment: it runs already")
	}
	if err := e.start(); err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			return
		}
		err = errors.Join(err, e.WebhookInstallOptions.Cleanup())
		if e.running != nil {
			err = errors.Join(err, e.stopCluster())
		}
	}()
	if err := e.complete(); err != nil {
		return nil, err
	}
	webhooks := &e.WebhookInstallOptions
	if err := webhooks.PrepWithoutInstalling(); err != nil {
		return nil, err
	}
	if e.running != nil {
		if err := e.running.reach(webhooks.LocalServingHost, webhooks.LocalServingPort); err != nil {
			return nil, err
		}
	}
	if e.CRDs, err = InstallCRDs(e.Config, e.CRDInstallOptions.with(e)); err != nil {
		return nil, err
	}
	e.CRDInstallOptions.CRDs = e.CRDs
	if err := webhooks.Install(e.Config); err != nil {
		return nil, err
	}
	return e.Config, nil
}

// start starts or finds the cluster and sets Config.
func (e *Environment) start() error {
	if e.usesExistingCluster() {
		if e.Config != nil {
			return nil
		}
		var err error
		e.Config, err = currentConfig()
		return err
	}
	settings, err := e.settings()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), settings.startTimeout)
	defer cancel()
	berth, err := e.program(ctx)
	if err != nil {
		return err
	}
	if e.running, err = start(ctx, berth, settings.args, settings.onLine); err != nil {
		return err
	}
	e.ControlPlaneStopTimeout = settings.stopTimeout
	e.ControlPlane.running = e.running
	e.Config = rest.CopyConfig(e.running.config)
	e.Config.QPS, e.Config.Burst = fastQPS, fastBurst
	return nil
}

// complete sets the fields that the user may read after Start.
func (e *Environment) complete() (err error) {
	if len(e.KubeConfig) == 0 || bytes.Equal(e.KubeConfig, e.madeKubeConfig) {
		if e.madeKubeConfig, err = kubeconfigOf(e.Config); err != nil {
			return err
		}
		e.KubeConfig = e.madeKubeConfig
	}
	if e.Scheme == nil {
		e.Scheme = scheme.Scheme
	}
	return nil
}

// Stop stops the cluster, and removes what Start has made outside of it. In an existing cluster CRDs and webhooks stay, unless
// CRDInstallOptions.CleanUpAfterUse is set.
func (e *Environment) Stop() error {
	var errs []error
	if e.CRDInstallOptions.CleanUpAfterUse && e.Config != nil {
		errs = append(errs, UninstallCRDs(e.Config, e.CRDInstallOptions))
	}
	errs = append(errs, e.WebhookInstallOptions.Cleanup())
	if e.running != nil {
		errs = append(errs, e.stopCluster())
	}
	return errors.Join(errs...)
}

func (e *Environment) stopCluster() error {
	r := e.running
	e.running, e.ControlPlane.running = nil, nil
	return r.end(e.ControlPlaneStopTimeout)
}

// AddUser makes a user: a client certificate with the name and the groups, of which system:masters has all rights. base has further
// settings of the client, such as its limits; it may be nil.
func (e *Environment) AddUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	if e.running == nil && e.usesExistingCluster() {
		return nil, fmt.Errorf("add user %s: the key that signs users of an existing cluster is the cluster's: make a kubeconfig there", user.Name)
	}
	return e.ControlPlane.AddUser(user, base)
}

func (e *Environment) usesExistingCluster() bool {
	if e.UseExistingCluster != nil {
		return *e.UseExistingCluster
	}
	return strings.EqualFold(os.Getenv(existingClusterEnv), "true")
}

// startSettings are what the fields and environment variables say about a start.
type startSettings struct {
	startTimeout, stopTimeout time.Duration
	args                      []string
	onLine                    func(string)
}

func (e *Environment) settings() (s startSettings, err error) {
	if e.DownloadBinaryAssetsIndexURL != "" {
		return s, errors.New("DownloadBinaryAssetsIndexURL: Berth's programs are not in such an index: remove the field")
	}
	if s.startTimeout, err = timeout(e.ControlPlaneStartTimeout, startTimeoutEnv, startTimeout); err != nil {
		return s, err
	}
	if s.stopTimeout, err = timeout(e.ControlPlaneStopTimeout, stopTimeoutEnv, environmentStopTimeout); err != nil {
		return s, err
	}
	if s.args, err = e.ControlPlane.args(); err != nil {
		return s, err
	}
	if e.isAPIOnly() {
		s.args = append(s.args, apiOnlyFlag)
	}
	attached := e.AttachControlPlaneOutput || os.Getenv(attachOutputEnv) == "true"
	s.onLine = func(line string) {
		if attached {
			fmt.Println("berth: " + line)
		}
	}
	return s, nil
}

func (e *Environment) isAPIOnly() bool { return e.APIOnly || os.Getenv(apiOnlyEnv) == "true" }

// timeout returns a duration of a field, or else of an environment variable, or else the default.
func timeout(field time.Duration, variable string, otherwise time.Duration) (time.Duration, error) {
	if field != 0 {
		return field, nil
	}
	text := os.Getenv(variable)
	if text == "" {
		return otherwise, nil
	}
	given, err := time.ParseDuration(text)
	if err != nil || given <= 0 {
		return 0, fmt.Errorf("%s=%s: want a duration above 0, such as 60s", variable, text)
	}
	return given, nil
}

// program returns the path of the program berth.
func (e *Environment) program(ctx context.Context) (string, error) {
	if err := errors.Join(checkVersion(e.DownloadBinaryAssetsVersion), checkRights(e.isAPIOnly())); err != nil {
		return "", err
	}
	dir := e.BinaryAssetsDirectory
	if dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "berth")); err != nil {
			fmt.Fprintf(os.Stderr, "berthtest: BinaryAssetsDirectory %s has no program berth and is not used; Berth brings its own API server and etcd\n", dir)
			dir = ""
		}
	}
	return findPrograms(ctx, dir, e.DownloadBinaryAssets)
}

// checkVersion returns an error unless Berth's Kubernetes has the minor version, such as v1.36.0 or 1.36.
func checkVersion(wanted string) error {
	if wanted == "" {
		return nil
	}
	parts := strings.SplitN(strings.TrimPrefix(wanted, "v"), ".", 3)
	if len(parts) < 2 {
		return fmt.Errorf("DownloadBinaryAssetsVersion %q: want a version such as v1.36.0", wanted)
	}
	if have := strings.SplitN(strings.TrimPrefix(kubernetesVersion, "v"), ".", 3); parts[0] != have[0] || parts[1] != have[1] {
		return fmt.Errorf("DownloadBinaryAssetsVersion %s: this Berth has Kubernetes %s: remove the field, or use the Berth of that version", wanted, kubernetesVersion)
	}
	return nil
}

// portText is a port as text.
func portText(port int) string { return strconv.Itoa(port) }
