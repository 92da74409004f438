package options

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/settings"
)

// ErrUsage is wrapped by errors in the command line itself.
var ErrUsage = errors.New("see `kubelet --help`")

// Options are what a command line and its files say.
type Options struct {
	Flags Flags
	// Configuration has the defaults of Kubernetes where nothing else is said.
	Configuration *settings.Configuration
	// Values are the flags by name, with their values.
	Values map[string]string
	// Warnings name flags that Kubernetes has deprecated and that have no effect.
	Warnings []string
}

// Parse reads the command line without the program's name, and the files that it names. Messages about deprecated flags go to
// messages. It changes nothing on disk.
func Parse(args []string, messages io.Writer) (*Options, error) {
	o := &Options{Flags: newFlags(), Configuration: commandLineDefaults()}
	flags := o.newFlagSet(&o.Flags, o.Configuration)
	flags.SetOutput(messages)
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrUsage)
	}
	if rest := flags.Args(); len(rest) > 0 {
		return nil, fmt.Errorf("unknown argument %q: %w", rest[0], ErrUsage)
	}
	if o.Flags.Help || o.Flags.Version != versionNone {
		return o, nil
	}
	if err := o.Flags.validate(); err != nil {
		return nil, err
	}
	if err := o.load(args); err != nil {
		return nil, err
	}
	o.Values, o.Warnings = values(flags), o.Flags.warnings(flags)
	if flags.Changed("seccomp-default") && o.Flags.SeccompDefault {
		o.Configuration.SeccompDefault = &o.Flags.SeccompDefault
	}
	return o, absolute(o.Configuration)
}

// absolute makes the paths of flags absolute: they are relative to the working directory. Those of the file already are.
func absolute(c *settings.Configuration) (err error) {
	for _, field := range paths(c) {
		if *field == "" || filepath.IsAbs(*field) {
			continue
		}
		if *field, err = filepath.Abs(*field); err != nil {
			return fmt.Errorf("find the working directory: %w", err)
		}
	}
	return nil
}

// paths are the fields that name files.
func paths(c *settings.Configuration) []*string {
	return []*string{
		&c.StaticPodPath, &c.Authentication.X509.ClientCAFile, &c.TLSCertFile, &c.TLSPrivateKeyFile, c.ResolverConfig,
		&c.VolumePluginDir, &c.PodLogsDir,
	}
}

// commandLineDefaults returns the configuration of a kubelet without configuration file. Its access control is that of the time
// before there were such files.
func commandLineDefaults() *settings.Configuration {
	c := settings.New()
	*c.Authentication.Anonymous.Enabled, *c.Authentication.Webhook.Enabled = true, false
	c.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeAlwaysAllow
	c.ReadOnlyPort = settings.DefaultReadOnlyPort
	return c
}

// load reads the files that the flags name, and the flags again over them.
func (o *Options) load(args []string) (err error) {
	if o.Flags.Config == "" && o.Flags.ConfigDir == "" {
		return nil
	}
	if o.Flags.Config != "" {
		if o.Configuration, _, err = ReadFile(o.Flags.Config); err != nil {
			return err
		}
	}
	if o.Flags.ConfigDir != "" {
		if o.Configuration, err = mergeDir(o.Configuration, o.Flags.ConfigDir); err != nil {
			return err
		}
	}
	gates := o.Configuration.FeatureGates
	ignored := newFlags()
	again := o.newFlagSet(&ignored, o.Configuration)
	again.SetOutput(io.Discard) // it has reported deprecated flags before
	if err := again.Parse(args); err != nil {
		return err
	}
	// Gates of the flags are added to those of the files.
	for name, state := range gates {
		if _, ok := o.Configuration.FeatureGates[name]; !ok {
			if o.Configuration.FeatureGates == nil {
				o.Configuration.FeatureGates = map[string]bool{}
			}
			o.Configuration.FeatureGates[name] = state
		}
	}
	return nil
}

// newFlagSet returns the flags, which set the values of flags and c.
func (o *Options) newFlagSet(flags *Flags, c *settings.Configuration) *pflag.FlagSet {
	set := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	set.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	set.Usage = func() {}
	set.SortFlags = true
	flags.add(set)
	addConfigurationFlags(set, c)
	return set
}

// FlagSet returns all flags with their defaults and their help. Setting them has no effect.
func FlagSet() *pflag.FlagSet {
	flags := newFlags()
	return (&Options{}).newFlagSet(&flags, commandLineDefaults())
}

// values returns the flags by name. A file holds each secret but the headers of --manifest-url-header.
func values(set *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	set.VisitAll(func(f *pflag.Flag) { out[f.Name] = f.Value.String() })
	if out[headerFlag] != "" {
		out[headerFlag] = "<masked>"
	}
	return out
}

// deprecatedFlags are the flags of upstream that have no effect in it, or are about to have none, with the reason.
func deprecatedFlags() map[string]string {
	out := map[string]string{
		"minimum-container-ttl-duration":           "dead containers are removed as soon as no status needs them",
		"maximum-dead-containers":                  "dead containers are removed as soon as no status needs them",
		"maximum-dead-containers-per-container":    "the newest dead instances of each container are kept",
		"experimental-mounter-path":                "mounts are made by system calls, without a program",
		"experimental-allocatable-ignore-eviction": "allocatable is always smaller by the hard eviction thresholds",
	}
	for name := range maps.Keys(cadvisorFlags()) {
		out[name] = "it is a flag of cAdvisor's manager, which this kubelet does not contain"
	}
	return out
}

// warnings returns a line for each flag that was set and has no effect.
func (f *Flags) warnings(set *pflag.FlagSet) []string {
	var out []string
	reasons := deprecatedFlags()
	set.Visit(func(f *pflag.Flag) {
		if reason, ok := reasons[f.Name]; ok && f.Value.String() != f.DefValue {
			out = append(out, fmt.Sprintf("--%s %s has no effect: %s", f.Name, f.Value, reason))
		}
	})
	return out
}

// exists returns an error that names the flag if its file does not exist.
func exists(flag, path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return nil
}

// deprecated is what pflag appends to the name of a flag that belongs into the file.
func deprecated(path string) string {
	return strings.Join([]string{"set", path, "in the file of --config"}, " ")
}
