// Package kubeadmimages builds the images that kubeadm runs: the control plane, etcd, kube-proxy, CoreDNS and the sandbox,
// each a program with what it needs, under the names that kubeadm lists.
package kubeadmimages

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-dev/berth/conformance/internal/elfdeps"
	"github.com/berth-dev/berth/conformance/internal/oci"
)

// Sources are the programs. All of them must be static, but nft.
type Sources struct {
	// Programs has kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy and etcd.
	Programs string
	// DNS and Pause are CoreDNS and the program of the sandbox.
	DNS, Pause string
	// Root is a system with nft, which kube-proxy calls: "/" for this machine.
	Root string
}

const (
	searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	nft        = "/usr/sbin/nft"
)

// Images builds the images with these names, as `kubeadm config images list` prints them.
func (s Sources) Images(names []string) ([]oci.Image, error) {
	images := make([]oci.Image, 0, len(names))
	for _, name := range names {
		image, err := s.image(name)
		if err != nil {
			return nil, fmt.Errorf("build image %q: %w", name, err)
		}
		images = append(images, image)
	}
	return images, nil
}

func (s Sources) image(name string) (oci.Image, error) {
	program, _, _ := strings.Cut(path.Base(name), ":")
	tree := &oci.Tree{}
	tree.Dir("/tmp", 0o1777)
	config := ocispec.ImageConfig{Env: []string{searchPath}}
	var err error
	switch program {
	case "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd":
		err = tree.Copy("/usr/local/bin/"+program, 0o755, filepath.Join(s.Programs, program))
	case "kube-proxy":
		if err = tree.Copy("/usr/local/bin/kube-proxy", 0o755, filepath.Join(s.Programs, program)); err == nil {
			err = s.addNFT(tree)
		}
	case "coredns":
		config.Entrypoint = []string{"/coredns"}
		err = tree.Copy("/coredns", 0o755, s.DNS)
	case "pause":
		config.Entrypoint, config.User = []string{"/pause"}, "65535:65535"
		err = tree.Copy("/pause", 0o755, s.Pause)
	default:
		err = fmt.Errorf("no program is known for it")
	}
	if err != nil {
		return oci.Image{}, err
	}
	layer, err := tree.Layer()
	return oci.Image{Name: name, Layers: [][]byte{layer}, Config: config}, err
}

// addNFT adds nft with its libraries.
func (s Sources) addNFT(tree *oci.Tree) error {
	root := elfdeps.Root(s.Root)
	needs, err := root.Needs(nft)
	if err != nil {
		return err
	}
	for _, name := range append(needs, nft) {
		source, err := root.Path(name)
		if err != nil {
			return err
		}
		if err := tree.Copy(name, 0o755, source); err != nil {
			return err
		}
	}
	return nil
}
