package main

import (
	"context"
	"os"
	"time"

	"k8s.io/client-go/transport"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the flag --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of API requests
	_ "k8s.io/component-base/metrics/prometheus/version"  // the metric kubernetes_build_info
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"

	"github.com/berth-dev/berth/controlplane/contain"
	"github.com/berth-dev/berth/controlplane/gctuner"
)

// proxyCommand is the first argument that makes this program kube-proxy. It is a process of its own because upstream's
// kube-proxy cannot be stopped within a process, and in this binary because it shares most of its code.
const proxyCommand = "kube-proxy"

// certificateReloadVariable says how often kube-proxy checks whether its certificate was renewed, in clusters with short-lived ones.
const certificateReloadVariable = "BERTH_CERTIFICATE_RELOAD"

// runProxy runs upstream's kube-proxy with its own flags and returns the exit code. Any signal ends it at once: the kernel
// goes on forwarding by the rules that it wrote.
func runProxy(args []string) int {
	contain.Install()
	go contain.Guard("proxy.tuneMemory", func() { tuneMemory(context.Background()) })() // until the process ends
	gctuner.DeferFirst(gctuner.ProxyGarbage)
	if reload, err := time.ParseDuration(os.Getenv(certificateReloadVariable)); err == nil {
		transport.CertCallbackRefreshDuration = reload
	}
	command := proxy.NewProxyCommand()
	command.SetArgs(args)
	return cli.Run(command)
}
