// Command kubeletfacts writes what upstream's kubelet has, from its own code: the flags with their defaults, the default
// configuration, the feature gates with their stages and defaults, and the metrics with their labels. Tests of the root module compare Berth's kubelet with these files.
//
//	go run ./cmd/kubeletfacts ../kubelet
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	_ "k8s.io/component-base/logs/json/register" // as upstream's main package does
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/util/codec"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: kubeletfacts DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "kubeletfacts:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	_ = app.NewKubeletCommand(context.Background()) // registers the gates of all that the kubelet links
	gates, err := gates()
	if err != nil {
		return err
	}
	flags, err := flags()
	if err != nil {
		return err
	}
	configuration, err := options.NewKubeletConfiguration()
	if err != nil {
		return err
	}
	metrics, err := metrics()
	if err != nil {
		return err
	}
	text, err := codec.EncodeKubeletConfig(configuration, v1beta1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "settings", "gates.txt"), []byte(gates), 0o644),
		os.WriteFile(filepath.Join(dir, "options", "testdata", "flags.txt"), []byte(flags), 0o644),
		os.WriteFile(filepath.Join(dir, "options", "testdata", "defaults.yaml"), text, 0o644),
		os.WriteFile(filepath.Join(dir, "agent", "testdata", "metrics.txt"), []byte(metrics), 0o644),
	)
}

// flags returns a line for each flag: its name, whether it is deprecated, and its default.
func flags() (string, error) {
	server, err := options.NewKubeletServer()
	if err != nil {
		return "", err
	}
	set := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	server.AddFlags(set)
	options.AddGlobalFlags(set)
	var out strings.Builder
	set.VisitAll(func(f *pflag.Flag) {
		deprecated := "-"
		if f.Deprecated != "" {
			deprecated = "deprecated"
		}
		fmt.Fprintf(&out, "%s\t%s\t%s\t%s\t%s\n", f.Name, f.Shorthand, deprecated, f.NoOptDefVal, f.DefValue)
	})
	return out.String(), nil
}

// gates returns a line for each feature gate: its name, its stage (nothing for one that is generally available), its state,
// "locked", "kubelet" if the kubelet's code reads it, and "needs=" with the gates without which it cannot be on.
func gates() (string, error) {
	read, err := readByKubelet()
	if err != nil {
		return "", err
	}
	known, needed := utilfeature.DefaultMutableFeatureGate.GetAll(), utilfeature.DefaultMutableFeatureGate.Dependencies()
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(known)) {
		spec := known[name]
		if name == "AllAlpha" || name == "AllBeta" {
			continue
		}
		words := []string{string(name), "off"}
		if spec.Default {
			words[1] = "on"
		}
		if stage := string(spec.PreRelease); stage != "" {
			words = append(words, stage)
		}
		if spec.LockToDefault {
			words = append(words, "locked")
		}
		if read[name] {
			words = append(words, "kubelet")
		}
		var needs []string
		for _, other := range slices.Sorted(slices.Values(needed[name])) {
			needs = append(needs, string(other))
		}
		if len(needs) > 0 {
			words = append(words, "needs="+strings.Join(needs, ","))
		}
		fmt.Fprintln(&out, strings.Join(words, " "))
	}
	return out.String(), nil
}

// metrics returns a line for each metric of the kubelet in Kubernetes' own list of all metrics: the path that serves it, its
// name, and its labels.
func metrics() (string, error) {
	module, err := kubernetesModule()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(module, "test", "instrumentation", "documentation", "documentation-list.yaml"))
	if err != nil {
		return "", err
	}
	var list []struct {
		Namespace, Subsystem, Name string
		Labels                     []string
		ConstLabels                map[string]string
		ComponentEndpoints         []struct{ Component, Endpoint string }
	}
	if err := yaml.Unmarshal(text, &list); err != nil {
		return "", fmt.Errorf("read the list of metrics: %w", err)
	}
	var lines []string
	for _, metric := range list {
		var parts []string
		for _, part := range []string{metric.Namespace, metric.Subsystem, metric.Name} {
			if part != "" {
				parts = append(parts, part)
			}
		}
		labels := slices.Sorted(slices.Values(append(metric.Labels, slices.Collect(maps.Keys(metric.ConstLabels))...)))
		for _, at := range metric.ComponentEndpoints {
			if at.Component == "kubelet" {
				lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", at.Endpoint, strings.Join(parts, "_"), strings.Join(labels, ","))))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n", nil
}

// kubernetesModule returns the directory of the module k8s.io/kubernetes.
func kubernetesModule() (string, error) {
	out, err := exec.CommandContext(context.Background(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return "", fmt.Errorf("find the module k8s.io/kubernetes: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// readByKubelet returns the gates that the packages of the kubelet and of its volumes refer to.
func readByKubelet() (map[featuregate.Feature]bool, error) {
	module, err := kubernetesModule()
	if err != nil {
		return nil, err
	}
	names, err := constants(filepath.Join(module, "pkg", "features", "kube_features.go"))
	if err != nil {
		return nil, err
	}
	use := regexp.MustCompile(`\b(?:kube)?features\.([A-Z]\w+)`)
	read := map[featuregate.Feature]bool{}
	for _, dir := range []string{"pkg/kubelet", "pkg/volume", "cmd/kubelet", "pkg/credentialprovider", "pkg/probe", "pkg/util/oom"} {
		err := filepath.WalkDir(filepath.Join(module, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, match := range use.FindAllStringSubmatch(string(text), -1) {
				if name, ok := names[match[1]]; ok {
					read[featuregate.Feature(name)] = true
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return read, nil
}

// constants returns the values of the constants of feature gates by their names.
func constants(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^\s*(\w+)\s+featuregate\.Feature = "(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		names[match[1]] = match[2]
	}
	return names, nil
}
