package up

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// proxyPathName is the directory in RunDir that is kube-proxy's PATH in namespaces of the cluster's own.
const proxyPathName = "kube-proxy-path"

// proxyEnvironment returns kube-proxy's environment beside the usual one. Before kube-proxy does anything it removes what one in the
// modes iptables and IPVS may have left, by two dozen runs of iptables, and until then there are no Services.
// Namespaces of the cluster's own are new at each start, so there kube-proxy finds no program but nft.
func (c *Cluster) proxyEnvironment() ([]string, error) {
	if c.config.Inside == nil {
		return nil, nil
	}
	nft, err := exec.LookPath("nft")
	if err != nil {
		return nil, fmt.Errorf("find nft, by which kube-proxy writes its rules (install nftables): %w", err)
	}
	dir := filepath.Join(c.RunDir, proxyPathName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of kube-proxy's programs: %w", err)
	}
	link := filepath.Join(dir, "nft")
	if err := os.RemoveAll(link); err != nil { // of an earlier run of this component
		return nil, fmt.Errorf("replace kube-proxy's link to nft: %w", err)
	}
	if err := os.Symlink(nft, link); err != nil {
		return nil, fmt.Errorf("give kube-proxy nft: %w", err)
	}
	return []string{"PATH=" + dir}, nil
}
