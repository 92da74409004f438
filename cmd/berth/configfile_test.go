package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// otherValues are values, for the file, that differ from the flags' defaults, where the type of the flag alone does not say one.
var otherValues = map[string]string{
	"node-name": "other", "pod-cidr": "10.95.0.0/16", "service-cidr": "10.96.0.0/16", "api-address": "192.0.2.1",
	"load-balancer-cidr": "198.51.100.0/24", "swap-behavior": "LimitedSwap", "feature-gates": "{Some: true}",
	"runtime-config": "{some/v1: true}", "without": "[dns]", "kube-reserved": "{cpu: 1m}", "system-reserved": "{cpu: 2m}",
	"eviction-hard": "{memory.available: 1Mi}", "eviction-soft": "{memory.available: 2Mi}",
	"eviction-soft-grace-period": "{memory.available: 1m30s}", "eviction-minimum-reclaim": "{nodefs.available: 1Mi}",
	"runtime": "berth", "shutdown-grace-period": "2m", "shutdown-grace-period-critical-pods": "1m",
}

// otherValue returns a value that differs from the flag's default.
func otherValue(t *testing.T, flag *pflag.Flag, dir string) string {
	if value, exists := otherValues[flag.Name]; exists {
		return value
	}
	switch flag.Value.Type() {
	case "bool":
		return fmt.Sprint(flag.DefValue != "true")
	case "int", "int32", "int64":
		return "7"
	case "duration":
		return "3m"
	}
	if flag.Name == "kubelet-config" {
		path := filepath.Join(dir, "kubelet.yaml")
		require.NoError(t, os.WriteFile(path, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"), 0o600))
		return path
	}
	if flag.Name == "kubelet-root-dir" {
		return dir + "-kubelet" // apart from --data-dir
	}
	if flag.Value.Type() == "string" && (strings.HasSuffix(flag.Name, "-dir") || strings.HasSuffix(flag.Name, "-path") || flag.Name == "resolv-conf" ||
		flag.Name == "registry-config" || flag.Name == "snapshots" || flag.Name == "start-lock") {
		return dir
	}
	t.Fatalf("--%s is new: give it a value in this test", flag.Name)
	return ""
}

// TestEveryFlagOfUpCanBeInTheFile has --print-config print what a file with all flags sets.
func TestEveryFlagOfUpCanBeInTheFile(t *testing.T) {
	dir := t.TempDir()
	root := newRoot()
	up, _, err := root.Find([]string{"up"})
	require.NoError(t, err)
	var file strings.Builder
	var lines []string
	add := func(flag *pflag.Flag) {
		if _, refused := notInFile()[flag.Name]; refused || flag.Hidden || flag.Name == "isolated" { // which excludes --api-address
			return
		}
		fmt.Fprintf(&file, "%s: %s\n", flag.Name, otherValue(t, flag, dir))
		lines = append(lines, flag.Name)
	}
	up.LocalFlags().VisitAll(add)
	require.Contains(t, lines, dataDirFlag)
	require.Greater(t, len(lines), 30)
	path := filepath.Join(t.TempDir(), "berth.yaml")
	require.NoError(t, os.WriteFile(path, []byte(file.String()), 0o600))
	out, err := execute(t, "up", "--config", path, "--print-config", "--api-port", "9")
	require.NoError(t, err)
	for i, name := range lines {
		want := fmt.Sprintf("# %s:%d\n", path, i+1)
		if name == "api-port" {
			want = "api-port: 9 # command line\n"
		}
		require.Contains(t, out, want, name)
		require.Contains(t, "\n"+out, "\n"+name+":")
	}
	require.Contains(t, out, "isolated: false # default\n")

	written := filepath.Join(t.TempDir(), "written.yaml")
	require.NoError(t, os.WriteFile(written, []byte(out), 0o600))
	again, err := execute(t, "up", "--config", written, "--print-config")
	require.NoError(t, err)
	withoutComments := func(text string) string {
		var kept []string
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, " # ")
			kept = append(kept, strings.TrimSpace(line))
		}
		return strings.Join(kept, "\n")
	}
	require.Equal(t, withoutComments(out), withoutComments(again), "what is printed is such a file")
}

func TestConfigFileErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.yaml")
	for text, want := range map[string]string{
		"api-prot: 7000":   path + ":1: api-prot: unknown key: did you mean api-port?",
		"api-port: secure": path + `:1: api-port: --api-port "secure": not a whole number`,
		"reset: true":      path + ":1: reset: it may not be in the file: give --reset on the command line",
		"config: other":    path + ":1: config: it may not be in the file",
		"without: [etcd]":  `--without "etcd": known are`,
		"pod-cidr: many":   "--pod-cidr",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
		_, err := execute(t, "--data-dir", t.TempDir(), "up", "--config", path, "--print-config")
		require.ErrorContains(t, err, want, text)
		require.ErrorAs(t, err, new(usageError), text)
	}
	_, err := execute(t, "up", "--config", path+".absent", "--print-config")
	require.ErrorContains(t, err, path+".absent: no such file")
	_, err = execute(t, "up", "--config", "", "--print-config", "--data-dir", t.TempDir())
	require.NoError(t, err)
}

// TestPrecedenceOfTheDataDirectory covers all places that can name it.
func TestPrecedenceOfTheDataDirectory(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "berth.yaml")
	require.NoError(t, os.WriteFile(path, []byte("data-dir: "+dir+"/file\n"), 0o600))
	for want, words := range map[string][]string{
		dir + "/file # " + path + ":1":                           {"up"},
		dir + "/flag # command line":                             {"up", "--data-dir", dir + "/flag"},
		dir + "/before # before the command, or $BERTH_DATA_DIR": {"--data-dir", dir + "/before", "up"},
	} {
		out, err := execute(t, append(words, "--config", path, "--print-config")...)
		require.NoError(t, err)
		require.Contains(t, out, "data-dir: "+want+"\n")
	}
	t.Setenv(dataDirVariable, dir+"/variable")
	out, err := execute(t, "up", "--config", path, "--print-config")
	require.NoError(t, err)
	require.Contains(t, out, "data-dir: "+dir+"/variable # before the command, or $BERTH_DATA_DIR\n")
}
