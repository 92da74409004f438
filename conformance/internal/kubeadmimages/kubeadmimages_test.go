package kubeadmimages_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/conformance/internal/kubeadmimages"
)

func TestImagesAreWhatKubeadmLists(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"kube-apiserver", "etcd", "berth-dns", "pause"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("program "+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sources := kubeadmimages.Sources{Programs: dir, DNS: filepath.Join(dir, "berth-dns"), Pause: filepath.Join(dir, "pause"), Root: dir}
	images, err := sources.Images([]string{
		"registry.example/kube-apiserver:v1.2.3", "registry.example/coredns/coredns:v1", "registry.example:5000/pause:3", "registry.example/etcd:3-0",
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, program := range []string{"kube-apiserver", "berth-dns", "pause", "etcd"} {
		if !bytes.Contains(images[i].Layers[0], []byte("program "+program)) {
			t.Errorf("%s lacks %s", images[i].Name, program)
		}
	}
	if got := images[1].Config.Entrypoint; len(got) != 1 || got[0] != "/coredns" {
		t.Errorf("CoreDNS starts as %v", got)
	}
	if _, err := sources.Images([]string{"registry.example/other:1"}); err == nil || !strings.Contains(err.Error(), "registry.example/other:1") {
		t.Errorf("an image that is not known: %v", err)
	}
	if _, err := sources.Images([]string{"registry.example/kube-proxy:1"}); err == nil {
		t.Error("an image without its program is built")
	}
}
