package up

import (
	"path/filepath"

	"github.com/berth-dev/berth/explain/nodenetwork"
)

// NodeNetwork says where explanations find this node's processes.
func (l Layout) NodeNetwork() nodenetwork.Config {
	suffix := pidSuffix
	if inside, _ := filepath.Glob(filepath.Join(l.RunDir, "*"+insidePIDSuffix)); len(inside) > 0 { // the pattern is right
		suffix = insidePIDSuffix
	}
	pidFile := func(name string) string { return filepath.Join(l.RunDir, name+suffix) }
	return nodenetwork.Config{
		RuntimeSocket: l.ContainerdSocket(), PeerSocket: l.Socket(), NodePID: pidFile(containerdName), Resolvers: l.Resolvers,
		Proxy: nodenetwork.Process{ConfigFile: l.proxyConfigPath(), PIDFile: pidFile(proxyName), LogFile: l.Log(proxyName)},
		DNS:   nodenetwork.Process{ConfigFile: l.corefilePath(), PIDFile: pidFile(dnsName), LogFile: l.Log(dnsName)},
	}
}
