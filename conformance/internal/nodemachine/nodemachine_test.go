package nodemachine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/conformance/internal/nodemachine"
)

func TestWriteFollowsLinksAndReplacesWhatWasThere(t *testing.T) {
	source, dir := t.TempDir(), filepath.Join(t.TempDir(), "share")
	program, link := filepath.Join(source, "program"), filepath.Join(source, "kubelet")
	images := filepath.Join(source, "images")
	write(t, program, "#!/bin/sh\necho \"$@\"\n")
	write(t, filepath.Join(images, "blobs", "sha256", "abc"), "blob")
	write(t, filepath.Join(dir, "old"), "old")
	if err := os.Symlink("program", link); err != nil {
		t.Fatal(err)
	}
	err := nodemachine.Write(dir, nodemachine.Content{
		Programs: map[string]string{"kubelet": link, "cni/bridge": program}, Containerd: program, Images: images,
		SandboxImage: "example.test/pause:1", Shim: "a-shim", Extras: []string{nodemachine.Swap}, Command: []string{program, "it's", "$HOME", "two words"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin/cni/bridge", "images/blobs/sha256/abc", "shim", "machine.sh", "swap.sh", "isolate.sh", "containerd.sh", "kubelet.yaml"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "bin", "kubelet")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("kubelet is %v (%v), want a regular file", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "old")); !os.IsNotExist(err) {
		t.Errorf("a file of an earlier run is left: %v", err)
	}
	if extras, err := os.ReadFile(filepath.Join(dir, "extras")); err != nil || string(extras) != "swap\n" {
		t.Errorf("the machine is to have %q besides (%v), want swap", extras, err)
	}
	out, err := exec.Command("sh", filepath.Join(dir, "suite")).Output()
	if want := "it's $HOME two words\n"; err != nil || string(out) != want {
		t.Errorf("the command printed %q (%v), want %q", out, err, want)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
