//go:build integration

package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/kubelet/agent"
)

// staticManifest is a static Pod that runs until SIGTERM.
func staticManifest(name, mark string) string {
	return podManifest(name, shell(sleepScript, `"env": [{"name": "MARK", "value": "`+mark+`"}]`), "")
}

// TestStaticPods runs static Pods among files that are broken, huge, malicious, partly written and random. They appear in
// the API server and keep running whatever happens to their mirror Pods.
func TestStaticPods(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	a := newTestNode(t, t.TempDir())
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	write("one.yaml", staticManifest("one", "first"))
	maliciousManifests(t, dir)
	a.start(c.admin(), func(config *agent.Config) { config.Static.Path = dir })
	client := c.client()
	a.nodeReady(client)
	l := newLifecycleRunner(t, filepath.Join(c.dataDir, "admin.kubeconfig"), a.name)
	mirror := "one-" + a.name
	ready := func(pod *corev1.Pod) bool { return pod != nil && isReady(pod) }
	first, err := l.waitPod(t.Context(), mirror, "shown as ready", ready)
	require.NoError(t, err)
	require.NotEmpty(t, first.Annotations[corev1.MirrorPodAnnotationKey])
	require.Equal(t, "Node", first.OwnerReferences[0].Kind)

	// Its mirror Pod is deleted: another one is created, and the container keeps running.
	now := int64(0)
	require.NoError(t, client.CoreV1().Pods("default").Delete(t.Context(), mirror, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	second, err := l.waitPod(t.Context(), mirror, "shown again", func(pod *corev1.Pod) bool {
		return ready(pod) && pod.UID != first.UID
	})
	require.NoError(t, err)
	require.Equal(t, first.Status.ContainerStatuses[0].ContainerID, second.Status.ContainerStatuses[0].ContainerID)

	// Another manifest is added while random files are written to the directory.
	random := rand.New(rand.NewPCG(randomSeed(t), 5))
	for i := range 200 {
		noise(t, dir, i, random)
	}
	write("two.yaml", staticManifest("two", "first"))
	_, err = l.waitPod(t.Context(), "two-"+a.name, "shown as ready", ready)
	require.NoError(t, err)

	// A changed manifest is another Pod; a partly written one is none, and stops no Pod.
	write("one.yaml", staticManifest("one", "second"))
	third, err := l.waitPod(t.Context(), mirror, "replaced", func(pod *corev1.Pod) bool {
		return ready(pod) && pod.Annotations[corev1.MirrorPodAnnotationKey] != first.Annotations[corev1.MirrorPodAnnotationKey]
	})
	require.NoError(t, err)
	require.Equal(t, "second", third.Spec.Containers[0].Env[0].Value)
	whole := staticManifest("two", "second")
	write("two.yaml", whole[:len(whole)/2])
	write("three.yaml", staticManifest("three", "first"))
	_, err = l.waitPod(t.Context(), "three-"+a.name, "shown as ready", ready)
	require.NoError(t, err)
	_, err = l.waitPod(t.Context(), "two-"+a.name, "still there", ready)
	require.NoError(t, err)

	for _, name := range []string{"one", "two", "three"} {
		require.NoError(t, os.Remove(filepath.Join(dir, name+".yaml")))
		_, err = l.waitPod(t.Context(), name+"-"+a.name, "gone with its file", func(pod *corev1.Pod) bool { return pod == nil })
		require.NoError(t, err)
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	a.audit().requireClean(t, pods.Items)
}

// maliciousManifests fills a directory with files that are no manifests.
func maliciousManifests(t testing.TB, dir string) {
	t.Helper()
	for name, content := range map[string]string{
		"empty.yaml": "", "broken.yaml": "{{{", "binary.yaml": "\x00\xff\xfe\x01", "list.yaml": "[1, 2, 3]",
		"bomb.yaml":   "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c,*c,*c]",
		"deep.json":   strings.Repeat("[", 100000),
		"huge.yaml":   "# " + strings.Repeat("x", 24<<20),
		"secret.yaml": strings.Replace(staticManifest("secret", "x"), `"spec": {`, `"spec": {"volumes": [{"name": "s", "secret": {"secretName": "s"}}], `, 1),
		"escape.yaml": strings.Replace(staticManifest("escape", "x"), `"name": "escape"`, `"name": "../../escape"`, 1),
		"other.yaml":  `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "endless.yaml")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "directory.yaml"), 0o700))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600))
}

// noise writes, cuts, renames or removes one of a few files of random content, sometimes a part of a manifest.
func noise(t testing.TB, dir string, i int, random *rand.Rand) {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("noise%d.yaml", random.IntN(8)))
	content := bytes.Repeat([]byte{byte(random.IntN(256)), '\n', '-', ':'}, random.IntN(2000))
	if random.IntN(2) == 0 {
		content = []byte(staticManifest("noise", fmt.Sprint(i)))
		content = content[:random.IntN(len(content)-10)] // never a whole one
	}
	switch random.IntN(4) {
	case 0:
		_ = os.Remove(path) // it may not be there
	case 1:
		_ = os.Rename(path, path+".yaml")
	default:
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
}
