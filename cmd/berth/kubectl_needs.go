package main

import (
	"slices"
	"strings"
)

// need says what a kubectl command needs of a cluster.
type need int

const (
	// needsNothing: the command describes kubectl itself, or works on files only.
	needsNothing need = iota
	// hasKubeconfigFlag: --kubeconfig names the cluster.
	hasKubeconfigFlag
	// needsKubeconfig: the command reads or changes the cluster's kubeconfig.
	needsKubeconfig
	// needsCluster: the command sends requests to the cluster.
	needsCluster
)

// needOf returns what kubectl needs, by its arguments. If that is uncertain it returns needsCluster: kubectl itself
// would only report a refused connection.
func needOf(args []string) need {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end] // the rest is a command for a container
	}
	has := func(flags ...string) bool {
		return slices.ContainsFunc(args, func(arg string) bool { return slices.Contains(flags, arg) })
	}
	switch word := kubectlCommand(args); {
	case slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--kubeconfig") }):
		return hasKubeconfigFlag
	case slices.Contains(clusterlessCommands, word), has("-h", "--help", "--local", "--local=true"),
		word == "version" && has("--client", "--client=true"),
		word == "create" && has("--dry-run=client") && !slices.ContainsFunc(args, readsObjects):
		return needsNothing
	case word == "config":
		return needsKubeconfig
	}
	return needsCluster
}

// readsObjects reports whether an argument makes `kubectl create` read objects, whose kinds only a cluster knows, or
// which are in a cluster.
func readsObjects(arg string) bool {
	flag, _, _ := strings.Cut(arg, "=")
	return slices.Contains([]string{"--filename", "--kustomize", "--from"}, flag) ||
		strings.HasPrefix(arg, "-f") || strings.HasPrefix(arg, "-k")
}

// clusterlessCommands are kubectl's commands that never need a cluster. Without a command kubectl shows its help. Shell
// completion may fail without a cluster, but must neither block nor print messages into the command line.
var clusterlessCommands = []string{"", "help", "options", "completion", "plugin", "kuberc", "kustomize", "__complete", "__completeNoDesc"}

// kubectlCommand returns the name of kubectl's subcommand, empty if there is none.
func kubectlCommand(args []string) string {
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			return args[i]
		}
		if slices.Contains(valueFlags, args[i]) {
			i++
		}
	}
	return ""
}

// valueFlags are the flags that may precede kubectl's subcommand and take the next argument as their value. A test
// compares them with `kubectl options`.
var valueFlags = []string{
	"-n", "--namespace", "-s", "--server", "-v", "--v", "--as", "--as-group", "--as-uid", "--as-user-extra", "--cache-dir",
	"--certificate-authority", "--client-certificate", "--client-key", "--cluster", "--context", "--kubeconfig", "--kuberc",
	"--log-flush-frequency", "--password", "--profile", "--profile-output", "--request-timeout", "--tls-server-name",
	"--token", "--user", "--username", "--vmodule",
}
