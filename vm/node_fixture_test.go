//go:build vm

package vm

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var kubelet = flag.String("kubelet", "", "the program that becomes /usr/bin/kubelet (default: berth of -programs)")

// pauseImage is the image of the sandboxes, and of the Pods in guest/pods.
const pauseImage = "vm.local/pause:v1"

// kubeletProgram returns the program to test. berth behaves as a kubelet if it is called so.
func kubeletProgram() string {
	if *kubelet != "" {
		return *kubelet
	}
	return filepath.Join(*programs, "berth")
}

// nodePrograms are the programs of a node beside the kubelet: berth imports images.
var nodePrograms = []string{"berth", "containerd", "containerd-shim-runc-v2", "containerd-shim-berth-v1", "runc", "cni", "kubectl"}

// guestShare makes a directory for a machine with the node's programs, the kubelet under that name, and the files in
// guest. more is added to it.
func guestShare(t *testing.T, more ...string) string {
	t.Helper()
	share := t.TempDir()
	for _, name := range nodePrograms {
		runHost(t, "cp", "-a", filepath.Join(*programs, name), share)
	}
	runHost(t, "cp", "-L", kubeletProgram(), filepath.Join(share, "kubelet"))
	runHost(t, "cp", "-a", "guest", share)
	for _, path := range more {
		runHost(t, "cp", "-a", path, share)
	}
	return share
}

// installKubelet makes the kubelet a unit of the machine that runs with the drop-in, and starts nothing.
func installKubelet(t *testing.T, m *Machine, share, dropIn string) {
	t.Helper()
	output(t, m, `set -eu; cd `+quote(share)+`
		cp kubelet kubectl /usr/bin/
		mkdir -p /etc/systemd/system/kubelet.service.d
		cp guest/kubelet.service /etc/systemd/system/
		cp guest/`+dropIn+` /etc/systemd/system/kubelet.service.d/
		systemctl daemon-reload
		systemctl -q enable kubelet`)
}

// installContainerd installs containerd in the machine, with subnet as the network of its Pods.
func installContainerd(t *testing.T, m *Machine, share, subnet, sandbox string) {
	t.Helper()
	output(t, m, containerdScript(share, subnet, sandbox))
}

func containerdScript(share, subnet, sandbox string) string {
	return "sh " + quote(share) + "/guest/containerd.sh " + quote(share) + " " + subnet + " " + sandbox
}

// importImage imports a docker archive into the machine's containerd.
func importImage(t *testing.T, m *Machine, share string, archive []byte) {
	t.Helper()
	script := quote(share) + "/berth images --socket /run/containerd/containerd.sock import -"
	require.NoError(t, m.Run(t.Context(), script, IO{Stdin: bytes.NewReader(archive), Stdout: t.Output(), Stderr: t.Output()}))
}

// pauseArchive returns a docker archive with the pause image of make build.
func pauseArchive(t *testing.T) []byte {
	t.Helper()
	return programArchive(t, filepath.Join(*programs, "images", "pause"), pauseImage)
}

// programArchive returns the archive of an image that has one program, and runs it.
func programArchive(t *testing.T, path, image string) []byte {
	t.Helper()
	program, err := os.ReadFile(path)
	require.NoError(t, err)
	name := filepath.Base(path)
	return imageArchive(t, image, name, map[string][]byte{name: program})
}

// imageArchive returns the archive of an image with the files, which runs one of them.
func imageArchive(t *testing.T, image, program string, files map[string][]byte) []byte {
	t.Helper()
	layer := tarFile(t, files)
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Entrypoint": []string{"/" + program}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	require.NoError(t, err)
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"},
	}})
	require.NoError(t, err)
	return tarFile(t, map[string][]byte{"manifest.json": manifest, "config.json": config, "layer.tar": layer})
}

// tarFile returns an archive of executable files.
func tarFile(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for name, data := range files {
		require.NoError(t, archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}))
		_, err := archive.Write(data)
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	return buffer.Bytes()
}

// waitFor runs the script in the machine every second until it exits with 0, for limit seconds at most, and returns its
// output.
func waitFor(t *testing.T, m *Machine, limit int, script string) string {
	t.Helper()
	var out, errs bytes.Buffer
	loop := "for i in $(seq " + strconv.Itoa(limit) + "); do out=$(" + script + ") && { echo \"$out\"; exit 0; }; sleep 1; done; echo \"$out\" >&2; exit 1"
	err := m.Run(t.Context(), loop, IO{Stdout: &out, Stderr: io.MultiWriter(&errs, t.Output())})
	require.NoError(t, err, "waiting for: %s\n%s", script, &errs)
	return strings.TrimSpace(out.String())
}
