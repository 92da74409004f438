package options

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/berth-dev/berth/kubelet/settings"
)

// The values of --version.
const (
	versionNone  = "false"
	VersionPlain = "true"
	VersionRaw   = "raw"
)

// CloudExternal is the value of --cloud-provider for a cloud with a controller manager of its own.
const CloudExternal = "external"

// Flags are the flags that are no fields of the configuration. It has many fields because each is a flag.
type Flags struct {
	Help    bool
	Version string
	// Config is a configuration file, ConfigDir a directory of drop-in files over it.
	Config, ConfigDir string
	// Kubeconfig names the API server and the node's identity; empty means standalone. BootstrapKubeconfig may request an
	// identity. CertDir holds the certificates.
	Kubeconfig, BootstrapKubeconfig, CertDir string
	// HostnameOverride is the Node's name, NodeIP one or two addresses, NodeLabels the labels that it is registered with.
	HostnameOverride, NodeIP string
	NodeLabels               map[string]string
	// CloudProvider is empty or CloudExternal.
	CloudProvider string
	RootDir       string
	// SeccompDefault is the field of the same name.
	SeccompDefault bool
	// LockFile and ExitOnLockContention are those of agent.LockConfig.
	LockFile             string
	ExitOnLockContention bool
	// RuntimeCgroups is the cgroup of the container runtime, for statistics.
	RuntimeCgroups string
	// CredentialProviders and CredentialProvidersDir are those of agent.ImageConfig.
	CredentialProviders, CredentialProvidersDir string
}

func newFlags() Flags {
	return Flags{
		Version: versionNone, RootDir: settings.DefaultRootDir, CertDir: filepath.Join(settings.DefaultRootDir, "pki"),
		NodeLabels: map[string]string{},
	}
}

func (f *Flags) add(set *pflag.FlagSet) {
	set.BoolVarP(&f.Help, "help", "h", false, "print this help")
	set.Var(&versionValue{&f.Version}, "version", "print the version of Kubernetes that this kubelet stands in for; raw: in full")
	set.Lookup("version").NoOptDefVal = VersionPlain
	set.StringVar(&f.Config, "config", f.Config, "a KubeletConfiguration; flags come before it")
	set.StringVar(&f.ConfigDir, "config-dir", f.ConfigDir,
		"a directory whose files *.conf, also those below it, are merged over --config in the order of their names")
	set.StringVar(&f.Kubeconfig, "kubeconfig", f.Kubeconfig,
		"the kubeconfig of the cluster; without one the kubelet is standalone and runs static Pods only")
	set.StringVar(&f.BootstrapKubeconfig, "bootstrap-kubeconfig", f.BootstrapKubeconfig,
		"a kubeconfig that may request a client certificate, used while --kubeconfig does not exist or is not valid: the kubelet writes "+
			"--kubeconfig, and the certificate below --cert-dir")
	set.StringVar(&f.CertDir, "cert-dir", f.CertDir, "directory of certificates")
	set.StringVar(&f.HostnameOverride, "hostname-override", f.HostnameOverride, "the Node's name, in place of the machine's host name")
	set.StringVar(&f.NodeIP, "node-ip", f.NodeIP,
		"the Node's address, or two of different families; 0.0.0.0 and :: choose the default address of the family. Without it the default "+
			"address is used, IPv4 before IPv6")
	labels := cliflag.ConfigurationMap(f.NodeLabels)
	set.Var(&labels, "node-labels", "labels of the Node when it is registered: NAME=VALUE,…")
	set.StringVar(&f.CloudProvider, "cloud-provider", f.CloudProvider,
		"external if a cloud's controller manager sets the Node's addresses and removes its first taint; else empty")
	set.StringVar(&f.RootDir, "root-dir", f.RootDir, "directory of the kubelet's state and the Pods' volumes")
	set.BoolVar(&f.SeccompDefault, "seccomp-default", f.SeccompDefault, "run containers that name no seccomp profile with the runtime's default one")
	set.StringVar(&f.LockFile, "lock-file", f.LockFile, "a file that is locked while the kubelet runs, so that a second one waits")
	set.BoolVar(&f.ExitOnLockContention, "exit-on-lock-contention", f.ExitOnLockContention, "exit when a second kubelet waits for --lock-file")
	set.StringVar(&f.RuntimeCgroups, "runtime-cgroups", f.RuntimeCgroups, "the cgroup of the container runtime, for statistics")
	set.StringVar(&f.CredentialProviders, "image-credential-provider-config", f.CredentialProviders,
		"a CredentialProviderConfig, or a directory of them: plugins that provide credentials for registries")
	set.StringVar(&f.CredentialProvidersDir, "image-credential-provider-bin-dir", f.CredentialProvidersDir, "directory of the credential provider plugins")
	addWithoutEffect(set)
}

// addWithoutEffect adds the flags of upstream that have no effect here: values are checked, and warned about.
func addWithoutEffect(set *pflag.FlagSet) {
	reasons := deprecatedFlags()
	set.Duration("minimum-container-ttl-duration", 0, "")
	set.Int32("maximum-dead-containers-per-container", 1, "")
	set.Int32("maximum-dead-containers", -1, "")
	set.String("experimental-mounter-path", "", "")
	set.Bool("experimental-allocatable-ignore-eviction", false, "")
	for name, value := range cadvisorFlags() {
		switch value := value.(type) {
		case time.Duration:
			set.Duration(name, value, "")
		case bool:
			set.Bool(name, value, "")
		case int:
			set.Int(name, value, "")
		case string:
			set.String(name, value, "")
		}
	}
	for name, reason := range reasons {
		f := set.Lookup(name)
		f.Usage, f.Deprecated = "no effect", reason
	}
	// Upstream's own tests set it.
	set.Duration("housekeeping-interval", 10*time.Second, "how often the usage of containers is measured; this kubelet measures it when it is requested")
}

// cadvisorFlags are the flags that upstream's kubelet has from cAdvisor, with their defaults; it has deprecated all of them.
func cadvisorFlags() map[string]any {
	return map[string]any{
		"application-metrics-count-limit": 100, "boot-id-file": "/proc/sys/kernel/random/boot_id",
		"container-hints": "/etc/cadvisor/container_hints.json", "containerd": "/run/containerd/containerd.sock",
		"containerd-namespace": "k8s.io", "enable-load-reader": false, "event-storage-age-limit": "default=0",
		"event-storage-event-limit": "default=0", "global-housekeeping-interval": time.Minute, "log-cadvisor-usage": false,
		"machine-id-file": "/etc/machine-id,/var/lib/dbus/machine-id", "storage-driver-user": "root", "storage-driver-password": "root",
		"storage-driver-host": "localhost:8086", "storage-driver-db": "cadvisor", "storage-driver-table": "stats",
		"storage-driver-secure": false, "storage-driver-buffer-duration": time.Minute,
	}
}

// validate returns an error that names the flag that is wrong.
func (f *Flags) validate() error {
	switch {
	case f.CloudProvider != "" && f.CloudProvider != CloudExternal:
		return fmt.Errorf("--cloud-provider %q: want external or none: Kubernetes has removed the others", f.CloudProvider)
	case f.ExitOnLockContention && f.LockFile == "":
		return errors.New("--exit-on-lock-contention needs --lock-file")
	case (f.CredentialProviders == "") != (f.CredentialProvidersDir == ""):
		return errors.New("--image-credential-provider-config and --image-credential-provider-bin-dir go together")
	case f.BootstrapKubeconfig != "" && f.Kubeconfig == "":
		return errors.New("--bootstrap-kubeconfig needs --kubeconfig, which it writes")
	case f.RootDir == "":
		return errors.New("--root-dir is empty: name a directory")
	}
	if err := exists("image-credential-provider-config", f.CredentialProviders); err != nil {
		return err
	}
	return f.validateLabels()
}

func (f *Flags) validateLabels() error {
	for _, key := range slices.Sorted(maps.Keys(f.NodeLabels)) {
		value := f.NodeLabels[key]
		if messages := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(messages) > 0 {
			return fmt.Errorf("--node-labels %s=%s: %s", key, value, messages[0])
		}
		namespace, _, found := strings.Cut(key, "/")
		if found && ofKubernetes(namespace) && !kubeletapis.IsKubeletLabel(key) {
			return fmt.Errorf("--node-labels %s=%s: a node may not give itself this label of Kubernetes: want a prefix of your own, one of %s, or one of %s",
				key, value, strings.Join(kubeletapis.KubeletLabelNamespaces(), ", "), strings.Join(kubeletapis.KubeletLabels(), ", "))
		}
	}
	return nil
}

func ofKubernetes(namespace string) bool {
	for _, domain := range []string{"kubernetes.io", "k8s.io"} {
		if namespace == domain || strings.HasSuffix(namespace, "."+domain) {
			return true
		}
	}
	return false
}

// versionValue is the value of --version: without one, as a bool, or raw.
type versionValue struct{ value *string }

var _ pflag.Value = (*versionValue)(nil)

// String implements pflag.Value.
func (v *versionValue) String() string {
	if v.value == nil {
		return versionNone
	}
	return *v.value
}

// Set implements pflag.Value.
func (v *versionValue) Set(value string) error {
	switch value {
	case versionNone, VersionPlain, VersionRaw:
		*v.value = value
		return nil
	}
	return errors.New("want no value, true, false or raw")
}

// Type implements pflag.Value.
func (v *versionValue) Type() string { return "version" }

// IsBoolFlag says that the flag needs no value.
func (v *versionValue) IsBoolFlag() bool { return true }
