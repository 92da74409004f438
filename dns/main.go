// Command berth-dns is CoreDNS with the few plugins that a cluster on one machine needs, and those that kubeadm's Corefile
// names: kubeadm's judge in vm/ runs it. Its flags are CoreDNS' own; `berth up` writes its Corefile.
//
// It is a module of its own because CoreDNS has many dependencies that nothing else of Berth needs.
package main

import (
	"context"
	"os"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	"github.com/coredns/coredns/plugin/pkg/log"
	"k8s.io/client-go/transport"

	"github.com/berth-dev/berth/codepages"
	_ "github.com/berth-dev/berth/dns/loop" // in place of CoreDNS's
	"github.com/berth-dev/berth/dns/socketmetrics"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

// directives are the plugins in the order in which a request passes them.
var directives = []string{
	"reload", "bind", "health", "ready", "prometheus", socketmetrics.Name, "errors", "log", "hosts", "loadbalance", "cache", "kubernetes", "loop", "forward",
}

// certificateReloadVariable says how often the certificate of the kubeconfig is checked for a renewal, in clusters with short-lived ones.
const certificateReloadVariable = "BERTH_CERTIFICATE_RELOAD"

func main() {
	if reload, err := time.ParseDuration(os.Getenv(certificateReloadVariable)); err == nil {
		transport.CertCallbackRefreshDuration = reload
	}
	dnsserver.Directives = directives
	caddy.RegisterEventHook("codepages", func(event caddy.EventName, _ any) error {
		if event != caddy.InstanceStartupEvent {
			return nil
		}
		return codepages.Release()
	})
	codepages.ReleaseWhileIdle(context.Background(), func(err error) { log.Warningf("memory is not released while idle: %v", err) })
	coremain.Run()
}
