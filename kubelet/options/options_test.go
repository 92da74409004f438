package options

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/kubelet/settings"
)

// header begins each configuration file.
const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// files writes files below a new directory.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

func parse(args ...string) (*Options, error) { return Parse(args, io.Discard) }

// TestFlagsAreThoseOfUpstream compares the names, shorthands, defaults and deprecations with those of upstream's kubelet 1.36.3,
// which conformance/cmd/kubeletfacts has written.
func TestFlagsAreThoseOfUpstream(t *testing.T) {
	o := &Options{}
	flags := newFlags()
	set := o.newFlagSet(&flags, commandLineDefaults())
	var have []string
	set.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" { // upstream adds it elsewhere
			return
		}
		deprecated := "-"
		if f.Deprecated != "" {
			deprecated = "deprecated"
		}
		have = append(have, fmt.Sprintf("%s\t%s\t%s\t%s\t%s", f.Name, f.Shorthand, deprecated, f.NoOptDefVal, f.DefValue))
	})
	text, err := os.ReadFile("testdata/flags.txt")
	require.NoError(t, err)
	want := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	slices.Sort(have)
	slices.Sort(want)
	require.Equal(t, want, have)
}

// TestDefaultsAreThoseOfUpstream compares the configuration of a kubelet without flags with upstream's.
func TestDefaultsAreThoseOfUpstream(t *testing.T) {
	text, err := os.ReadFile("testdata/defaults.yaml")
	require.NoError(t, err)
	want := &settings.Configuration{}
	require.NoError(t, yaml.UnmarshalStrict(text, want))
	o, err := parse()
	require.NoError(t, err)
	have, err := yaml.Marshal(o.Configuration)
	require.NoError(t, err)
	wanted, err := yaml.Marshal(want)
	require.NoError(t, err)
	require.Equal(t, string(wanted), string(have))
}

// TestEachFieldHasItsFlag compares the table of fields with the flags.
func TestEachFieldHasItsFlag(t *testing.T) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	addConfigurationFlags(set, settings.New())
	for _, field := range settings.Fields() {
		if field.Flag != "" {
			f := set.Lookup(field.Flag)
			require.NotNil(t, f, field.Flag)
			require.Equal(t, field.Does, f.Usage)
		}
	}
	set.VisitAll(func(f *pflag.Flag) { require.NotEmpty(t, f.Usage, "the flag --%s is of no field", f.Name) })
}

// TestLaterSourcesComeFirst sets values in the file, in drop-in files and by flags.
func TestLaterSourcesComeFirst(t *testing.T) {
	dir := files(t, map[string]string{
		"config": header + "maxPods: 1\nport: 1\nreadOnlyPort: 1\nfeatureGates: {MemoryQoS: true, ImageVolume: true}\n" +
			"evictionHard: {memory.available: 1Mi, pid.available: 5%}\nclusterDNS: [10.0.0.1]\nstaticPodPath: pods\nlogging: {verbosity: 2}\n",
		"conf.d/20-b.conf": header + "port: 20\nclusterDNS: [10.0.0.3]\n",
		"conf.d/10-a.conf": `{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","port":10,"readOnlyPort":10,` +
			`"evictionHard":{"memory.available":"2Mi"},"clusterDNS":["10.0.0.2"]}`,
		"conf.d/sub/30.conf": header + "registryBurst: 30\n",
		"conf.d/README":      "not a drop-in file",
	})
	o, err := parse("--config", dir+"/config", "--config-dir", dir+"/conf.d", "--port=99", "--feature-gates=ImageVolume=false", "-v=5")
	require.NoError(t, err)
	c := o.Configuration
	require.EqualValues(t, 99, c.Port, "a flag comes before all files")
	require.EqualValues(t, 10, c.ReadOnlyPort, "a drop-in file comes before the file")
	require.EqualValues(t, 1, c.MaxPods)
	require.EqualValues(t, 30, c.RegistryBurst)
	require.Equal(t, []string{"10.0.0.3"}, c.ClusterDNS, "a list is replaced")
	require.Equal(t, map[string]string{"memory.available": "2Mi", "pid.available": "5%"}, c.EvictionHard, "a map is merged")
	require.Equal(t, map[string]bool{"MemoryQoS": true, "ImageVolume": false}, c.FeatureGates, "gates are merged")
	require.Equal(t, filepath.Join(dir, "pods"), c.StaticPodPath, "a path is relative to its file")
	require.EqualValues(t, 5, c.Logging.Verbosity)
	require.False(t, *c.Authentication.Anonymous.Enabled, "with a file the defaults are those of files")
	require.Equal(t, kubeletconfig.KubeletAuthorizationModeWebhook, c.Authorization.Mode)
}

func TestEvictionDefaultsAreMerged(t *testing.T) {
	dir := files(t, map[string]string{
		"none": header, "own": header + "evictionHard: {memory.available: 5Mi}\n",
		"merged":               header + "evictionHard: {memory.available: 5Mi}\nmergeDefaultEvictionSettings: true\n",
		"conf.d/10-merge.conf": header + "mergeDefaultEvictionSettings: true\n",
	})
	hard := func(args ...string) map[string]string {
		o, err := parse(args...)
		require.NoError(t, err)
		return o.Configuration.EvictionHard
	}
	require.Empty(t, hard())
	require.Equal(t, settings.DefaultEvictionHard(), hard("--config", dir+"/none"))
	require.Equal(t, map[string]string{"memory.available": "5Mi"}, hard("--config", dir+"/own"))
	merged := settings.DefaultEvictionHard()
	merged["memory.available"] = "5Mi"
	require.Equal(t, merged, hard("--config", dir+"/merged"))
	require.Equal(t, merged, hard("--config", dir+"/own", "--config-dir", dir+"/conf.d"))
}

// TestBadFilesAreErrors gives files that cannot be meant: the error is one line that names the file and what is wrong.
func TestBadFilesAreErrors(t *testing.T) {
	dir := files(t, map[string]string{
		"empty": "\n", "unknown": header + "maxPod: 3\n", "twice": header + "maxPods: 3\nmaxPods: 4\n", "nested": header + "logging: {verbose: 3}\n",
		"json": `{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","maxPods":1,"maxPods":2}`,
		"half": header + "authentication: {x509: {clientCAFile: /a\n", "kind": "maxPods: 3\n", "other": "apiVersion: v1\nkind: Pod\n",
		"type": header + "maxPods: many\n", "two": header + "maxPods: 3\n---\n" + header + "maxPods: 4\n",
		"comment": "# a comment\n---\n" + header + "maxPods: 3\n", "credential": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: CredentialProviderConfig\nproviders: []\n",
		"conf.d/a.conf": header + "maxPod: 3\n",
	})
	for name, want := range map[string]string{
		"empty": "is empty", "unknown": `unknown field "maxPod"`, "twice": `"maxPods" already set`, "nested": `unknown field "logging.verbose"`,
		"json": `"maxPods"`, "half": "yaml", "kind": "no apiVersion and kind", "other": "KubeletConfiguration",
		"type": "maxPods", "two": "more than one YAML document", "credential": "CredentialProviderConfig", "missing": "no such file",
	} {
		_, err := parse("--config", filepath.Join(dir, name))
		require.ErrorContains(t, err, want, name)
		require.ErrorContains(t, err, filepath.Join(dir, name))
	}
	_, err := parse("--config", dir+"/comment")
	require.NoError(t, err)
	_, err = parse("--config-dir", dir+"/conf.d")
	require.ErrorContains(t, err, dir+"/conf.d/a.conf")
	_, err = parse("--config-dir", dir+"/none")
	require.ErrorContains(t, err, "drop-in directory")
}

func TestBadFlagsAreErrors(t *testing.T) {
	for want, args := range map[string][]string{
		"unknown flag: --bogus":             {"--bogus"},
		`unknown argument "run"`:            {"run"},
		`invalid argument "x"`:              {"--port=x"},
		"--exit-on-lock-contention needs":   {"--exit-on-lock-contention"},
		"--cloud-provider \"aws\"":          {"--cloud-provider=aws"},
		"go together":                       {"--image-credential-provider-config=/a"},
		"--bootstrap-kubeconfig needs":      {"--bootstrap-kubeconfig=/a"},
		"may not give itself this label":    {"--node-labels=node-role.kubernetes.io/a=b"},
		"--node-labels a b=c":               {"--node-labels=a b=c"},
		`"nowhere" is not an IP address`:    {"--address=nowhere"},
		`taint "a"`:                         {"--register-with-taints=a"},
		`reserved memory "0"`:               {"--reserved-memory=0"},
		"no such file":                      {"--image-credential-provider-config=/nowhere", "--image-credential-provider-bin-dir=/a"},
		"want no value, true, false or raw": {"--version=x"},
	} {
		_, err := parse(args...)
		require.ErrorContains(t, err, want)
	}
}

// TestFlagValuesAreParsed covers the flags with values of their own forms.
func TestFlagValuesAreParsed(t *testing.T) {
	var messages strings.Builder
	o, err := Parse([]string{
		"--register-with-taints=a=b:NoSchedule,c:NoExecute", "--reserved-memory=0:memory=1Gi;1:hugepages-2Mi=4Mi", "--reserved-memory=2:memory=1Gi",
		"--node_labels=a=b", "--manifest-url-header=a:b", "--seccomp-default", "--eviction-hard=memory.available<1Gi", "--vmodule=a=3",
		"--maximum-dead-containers=5", "--storage-driver-user=me",
	}, &messages)
	require.NoError(t, err)
	c := o.Configuration
	require.Len(t, c.RegisterWithTaints, 2)
	require.Equal(t, "a=b:NoSchedule", c.RegisterWithTaints[0].ToString())
	require.Len(t, c.ReservedMemory, 3)
	require.Equal(t, map[string]string{"a": "b"}, o.Flags.NodeLabels)
	require.True(t, *c.SeccompDefault)
	require.Equal(t, map[string]string{"memory.available": "1Gi"}, c.EvictionHard)
	require.EqualValues(t, 3, c.Logging.VModule[0].Verbosity)
	require.Equal(t, "<masked>", o.Values[headerFlag])
	require.Len(t, o.Warnings, 2)
	require.Contains(t, messages.String(), "--manifest-url-header has been deprecated, set staticPodURLHeader")
	for args, want := range map[string]string{"--version": VersionPlain, "--version=raw": VersionRaw} {
		o, err := parse(args)
		require.NoError(t, err)
		require.Equal(t, want, o.Flags.Version)
	}
}

// TestZeroOfAFlagIsItsValue sets flags to zero, which means the default in a file alone.
func TestZeroOfAFlagIsItsValue(t *testing.T) {
	o, err := parse("--max-pods=0", "--minimum-image-ttl-duration=0s", "--authentication-token-webhook-cache-ttl=0s",
		"--authorization-webhook-cache-authorized-ttl=0s", "--authorization-webhook-cache-unauthorized-ttl=0s",
		"--streaming-connection-idle-timeout=0s", "--volume-stats-agg-period=0s", "--eviction-pressure-transition-period=0s")
	require.NoError(t, err)
	chosen, err := settings.ConvertComplete(o.Configuration)
	require.NoError(t, err)
	config := &chosen.Agent
	require.Zero(t, *config.Pods.Max)
	require.Zero(t, chosen.Source.MaxPods)
	require.Zero(t, config.Server.StreamIdleTimeout)
	for name, none := range map[string]time.Duration{
		"Images.MinAge": config.Images.MinAge, "TokenTTL": config.Server.Auth.TokenTTL, "AllowedTTL": config.Server.Auth.AllowedTTL,
		"DeniedTTL": config.Server.Auth.DeniedTTL, "UsageMaxAge": config.Pods.UsageMaxAge,
		"PressureTransitionPeriod": config.Eviction.PressureTransitionPeriod,
	} {
		require.Negative(t, none, name)
	}
	for flag, want := range map[string]string{
		"--port=0": "port (--port) 0", "--registry-burst=0": "registryBurst (--registry-burst) 0", "--sync-frequency=0s": "syncFrequency",
		"--container-log-max-size=": "containerLogMaxSize",
	} {
		o, err := parse(flag)
		require.NoError(t, err)
		_, err = settings.ConvertComplete(o.Configuration)
		require.ErrorContains(t, err, want)
	}
	dir := files(t, map[string]string{"config": header + "maxPods: 0\n"})
	o, err = parse("--config", dir+"/config")
	require.NoError(t, err)
	require.EqualValues(t, 110, o.Configuration.MaxPods, "a zero in a file is no value")
}

// TestTheFileMayBeAPipe has what a shell passes for <(command).
func TestTheFileMayBeAPipe(t *testing.T) {
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	defer reader.Close()
	_, err = writer.WriteString(header + "maxPods: 50\n")
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	c, fields, err := ReadFile(fmt.Sprintf("/proc/self/fd/%d", reader.Fd()))
	require.NoError(t, err)
	require.Equal(t, int32(50), c.MaxPods)
	require.Equal(t, []string{"apiVersion", "kind", "maxPods"}, fields)
}
