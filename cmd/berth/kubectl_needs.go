package main

import (
	"slices"
	"strings"
)

// need is what a call of kubectl needs of a cluster.
type need int

const (
	// needsNothing: it tells about kubectl itself, or works on files alone.
	needsNothing need = iota
	// hasKubeconfigFlag: --kubeconfig says which cluster it is, and berth has no part in it.
	hasKubeconfigFlag
	// needsKubeconfig: it reads and changes the cluster's kubeconfig.
	needsKubeconfig
	// needsCluster: it asks the cluster.
	needsCluster
)

// needOf tells by kubectl's arguments what it needs. Where that is not certain, it is a cluster that answers: kubectl
// itself would only tell of an address where nobody listens.
func needOf(args []string) need {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end] // what follows is a Pod's command
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

// readsObjects tells the arguments by which create makes objects of others, whose kinds only a cluster knows, or which are
// in one.
func readsObjects(arg string) bool {
	flag, _, _ := strings.Cut(arg, "=")
	return slices.Contains([]string{"--filename", "--kustomize", "--from"}, flag) ||
		strings.HasPrefix(arg, "-f") || strings.HasPrefix(arg, "-k")
}

// clusterlessCommands are kubectl's commands that never need one; none at all shows its help, and what a shell asks to complete
// a line may fail, but neither for long nor with words in the middle of that line.
var clusterlessCommands = []string{"", "help", "options", "completion", "plugin", "kuberc", "kustomize", "__complete", "__completeNoDesc"}

// kubectlCommand is the word that says what kubectl is to do, empty if there is none.
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

// valueFlags are the flags that may stand before kubectl's word and have the next argument for their value. A test holds
// them against what kubectl tells of itself.
var valueFlags = []string{
	"-n", "--namespace", "-s", "--server", "-v", "--v", "--as", "--as-group", "--as-uid", "--as-user-extra", "--cache-dir",
	"--certificate-authority", "--client-certificate", "--client-key", "--cluster", "--context", "--kubeconfig", "--kuberc",
	"--log-flush-frequency", "--password", "--profile", "--profile-output", "--request-timeout", "--tls-server-name",
	"--token", "--user", "--username", "--vmodule",
}
