//go:build integration

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/imagestore"
)

const localPath = "github.com/rancher/local-path-provisioner"

// goTool runs the go command in one of the modules of test/thirdparty.
func goTool(t *testing.T, module string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = filepath.Join("..", "thirdparty", module)
	out, err := cmd.Output()
	require.NoError(t, err, "go %s", strings.Join(args, " "))
	return strings.TrimSpace(string(out))
}

// importProgram imports an image with one static program.
func importProgram(t *testing.T, c *cluster, name, binary, path string) {
	t.Helper()
	content, err := os.ReadFile(binary)
	require.NoError(t, err)
	image, err := imagestore.Build(imagestore.BuildSpec{Name: name, Binary: content, Path: path})
	require.NoError(t, err)
	archive := filepath.Join(t.TempDir(), "image.tar")
	file, err := os.Create(archive)
	require.NoError(t, err)
	require.NoError(t, imagestore.WriteTar(file, image))
	require.NoError(t, file.Close())
	require.Contains(t, c.mustRun("images", "import", archive), name)
}

// TestLocalPathProvisioner runs Rancher's local-path-provisioner as its own manifest deploys it: a Deployment that talks
// to the API server with the token of its service account, and creates and removes directories with helper Pods. The
// test changes the directory of the volumes, and the address of the API server.
func TestLocalPathProvisioner(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	// The helper Pods' script uses the applets of busybox's shell.
	importProgram(t, c, "docker.io/library/busybox:latest", "/bin/busybox", "/bin/sh")
	importProgram(t, c, "docker.io/rancher/local-path-provisioner:v0.0.30", thirdPartyBinary(t, "local-path-provisioner"),
		"/usr/bin/local-path-provisioner")

	manifest, err := os.ReadFile(filepath.Join(goTool(t, "localpath", "list", "-m", "-f", "{{.Dir}}", localPath), "deploy", "local-path-storage.yaml"))
	require.NoError(t, err)
	root, port := t.TempDir(), c.args[3]
	env := "          env:\n"
	adapted := strings.NewReplacer("/opt/local-path-provisioner", root, env, env+
		"            - {name: KUBERNETES_SERVICE_HOST, value: "+c.gateway()+"}\n"+
		"            - {name: KUBERNETES_SERVICE_PORT, value: '"+port+"'}\n").Replace(string(manifest))
	require.Contains(t, adapted, c.gateway())
	c.apply(adapted)
	c.mustRun("kubectl", "-n", "local-path-storage", "rollout", "status", "deployment/local-path-provisioner", "--timeout=2m")

	c.apply(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "disk"}, "spec": {"storageClassName": "local-path",
		"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "32Mi"}}}}`)
	c.apply(podManifest("writer", shell("echo precious > /disk/file", `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`), diskPod))
	pod := c.waitPod("name=writer", "finished", finished)
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase)
	files, err := filepath.Glob(filepath.Join(root, "pvc-*_default_disk", "file"))
	require.NoError(t, err)
	require.Len(t, files, 1, "the volume is a directory of the provisioner")

	c.mustRun("kubectl", "delete", "pod", "writer", "--timeout=2m")
	c.mustRun("kubectl", "delete", "pvc", "disk", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, left, "the directory is deleted with the claim")
	c.stop()
	require.Empty(t, c.leftovers())
}
