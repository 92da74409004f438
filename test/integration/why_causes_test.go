//go:build integration

package integration

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/explain"
)

// manifest brings a cause about by what it applies.
func manifest(texts ...string) func(*testing.T, *cluster, *asker) {
	return func(_ *testing.T, c *cluster, _ *asker) {
		for _, text := range texts {
			c.apply(text)
		}
	}
}

// command brings a cause about by a call of kubectl.
func command(words ...string) func(*testing.T, *cluster, *asker) {
	return func(_ *testing.T, c *cluster, _ *asker) { c.mustRun(append([]string{"kubectl"}, words...)...) }
}

func inOrder(steps ...func(*testing.T, *cluster, *asker)) func(*testing.T, *cluster, *asker) {
	return func(t *testing.T, c *cluster, a *asker) {
		for _, step := range steps {
			step(t, c, a)
		}
	}
}

// claimManifest is a claim; more are further fields of its spec.
func claimManifest(name, more string) string {
	if more != "" {
		more = ", " + more
	}
	return `{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "` + name + `"}, "spec": {
		"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}` + more + `}}`
}

func classManifest(name, provisioner, more string) string {
	return `{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "` + name + `"}, "provisioner": "` +
		provisioner + `"` + more + `}`
}

// onVolume is a Pod with one volume.
func onVolume(name, source string) string {
	return podManifest(name, shell("sleep 1000", `"volumeMounts": [{"name": "v", "mountPath": "/v"}]`), `"volumes": [{"name": "v", `+source+`}]`)
}

func onClaim(name string) string {
	return onVolume(name, `"persistentVolumeClaim": {"claimName": "`+name+`"}`)
}

func claimCauses() []why {
	setDefault := func(value string) func(*testing.T, *cluster, *asker) {
		return command("annotate", "sc", "berth-local", "storageclass.kubernetes.io/is-default-class="+value, "--overwrite")
	}
	return []why{
		{name: "no claim", reason: "ClaimMissing", object: "no-claim", says: "claim no-claim (volume v) does not exist",
			bring: manifest(onClaim("no-claim"))},
		{name: "claim without class", reason: "ClaimWithoutClass", object: "no-class", says: "no default class",
			bring: inOrder(setDefault("false"), manifest(claimManifest("no-class", ""), onClaim("no-class"))), undo: setDefault("true")},
		{name: "class missing", reason: "ClassMissing", object: "bad-class", says: `"fast", which does not exist`,
			bring: manifest(claimManifest("bad-class", `"storageClassName": "fast"`), onClaim("bad-class"))},
		{name: "no volume fits", reason: "NoMatchingVolume", object: "static", kind: explain.KindClaim, says: "none that is free fits",
			bring: manifest(claimManifest("static", `"storageClassName": ""`))},
		{name: "volume missing", reason: "VolumeMissing", object: "gone", kind: explain.KindClaim, says: "asks for volume gone-pv",
			bring: manifest(claimManifest("gone", `"storageClassName": "", "volumeName": "gone-pv"`))},
		{name: "no consumer", reason: "WaitForFirstConsumer", object: "idle", kind: explain.KindClaim, says: "there is none yet",
			bring: manifest(claimManifest("idle", ""))},
		{name: "class without provisioner", reason: "ProvisionerSilent", object: "silent", says: "provisioner nobody.example/disk",
			bring: manifest(classManifest("nobody", "nobody.example/disk", ""), claimManifest("silent", `"storageClassName": "nobody"`), onClaim("silent"))},
		{name: "provisioner failing", reason: "ProvisioningFailed", object: "failing", says: "cannot be provisioned",
			bring: manifest(classManifest("odd", "berth.dev/local", `, "parameters": {"colour": "blue"}`),
				claimManifest("failing", `"storageClassName": "odd"`), onClaim("failing"))},
	}
}

func nodeCauses() []why {
	return []why{
		{name: "node cordoned", reason: "NodesCordoned", object: "cordoned", says: "cordoned",
			bring: inOrder(command("cordon", homeNode), manifest(podManifest("cordoned", shell("sleep 1000", ""), ""))),
			undo: func(t *testing.T, c *cluster, a *asker) {
				answer := a.until(t, explain.KindNode, "", homeNode, "Cordoned")
				require.Contains(t, answer.Next, "uncordon")
				c.mustRun("kubectl", "uncordon", homeNode)
			}},
		{name: "node too small", reason: "InsufficientResources", object: "huge", says: "Insufficient cpu",
			bring: manifest(podManifest("huge", shell("sleep 1000", `"resources": {"requests": {"cpu": "1000"}}`), ""))},
		{name: "no such node label", reason: "Unschedulable", object: "label", says: "didn't match Pod's node affinity/selector",
			bring: manifest(podManifest("label", shell("sleep 1000", ""), `"nodeSelector": {"disk": "gold"}`))},
		{name: "scheduling gate", reason: "SchedulingGated", object: "gated", says: "example.test/gate",
			bring: manifest(podManifest("gated", shell("sleep 1000", ""), `"schedulingGates": [{"name": "example.test/gate"}]`))},
		{name: "quota", reason: "FailedCreate", object: "limited", kind: explain.KindReplicaSet, namespace: "small", says: "exceeded quota",
			bring: inOrder(command("create", "namespace", "small"), command("-n", "small", "create", "quota", "none", "--hard=pods=0"),
				manifest(`{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "limited", "namespace": "small"}, "spec": {
				"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
				"containers": [{"name": "main", "image": "`+shellImage+`"}]}}}}`))},
	}
}

func volumeCauses() []why {
	return []why{
		{name: "configMap missing", reason: "ConfigMapMissing", object: "no-config", says: "configmap default/absent",
			bring: manifest(onVolume("no-config", `"configMap": {"name": "absent"}`))},
		{name: "secret missing", reason: "SecretMissing", object: "no-secret", says: "secret default/absent",
			bring: manifest(onVolume("no-secret", `"secret": {"secretName": "absent"}`))},
		{name: "configMap of the environment missing", reason: "ConfigMapMissing", object: "no-env", says: "absent-env",
			bring: manifest(podManifest("no-env", shell("sleep 1000", `"envFrom": [{"configMapRef": {"name": "absent-env"}}]`), ""))},
		{name: "hostPath of another type", reason: "HostPathType", object: "no-dir", says: "hostPath type check failed",
			bring: manifest(onVolume("no-dir", `"hostPath": {"path": "/etc/hostname", "type": "Directory"}`))},
		{name: "field not supported", reason: "UnsupportedField", object: "fc", says: "spec.volumes[v].fc",
			bring: manifest(onVolume("fc", `"fc": {"targetWWNs": ["50060e801049cfd1"], "lun": 0}`))},
		{name: "pod network", reason: "FailedCreatePodSandBox", object: "no-network", says: "not a bridge",
			bring: func(t *testing.T, c *cluster, _ *asker) {
				replaceInNetwork(t, c, "berth"+c.id(), "lo")
				c.apply(podManifest("no-network", shell("sleep 1000", ""), ""))
			},
			undo: func(t *testing.T, c *cluster, _ *asker) { replaceInNetwork(t, c, "lo", "berth"+c.id()) }},
	}
}

// replaceInNetwork changes the name of the bridge in the pod network's configuration.
func replaceInNetwork(t *testing.T, c *cluster, old, other string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.dataDir, "cni", "net.d", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		changed := strings.Replace(string(data), `"bridge": "`+old+`"`, `"bridge": "`+other+`"`, 1)
		require.NotEqual(t, string(data), changed)
		require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))
	}
}

// imageCauses has a registry that knows nobody but its user.
func imageCauses(t *testing.T) []why {
	content := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if strings.Contains(r.URL.Path, "/closed/") && (user != "user" || password != "right") {
			w.Header().Set("WWW-Authenticate", `Basic realm="closed"`)
			http.Error(w, `{"errors": [{"code": "UNAUTHORIZED", "message": "wrong password"}]}`, http.StatusUnauthorized)
			return
		}
		content.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host := server.Listener.Addr().(*net.TCPAddr).String()
	image := func(name string) string { return `{"image": "` + host + "/" + name + `:v1"}` }
	return []why{
		{name: "image missing", reason: "ErrImagePull", object: "no-image", says: "open/none:v1",
			bring: manifest(podManifest("no-image", image("open/none"), ""))},
		{name: "pull secret missing", reason: "PullSecretMissing", object: "no-key", says: "its pull secret absent-key does not exist",
			bring: manifest(podManifest("no-key", image("closed/none"), `"imagePullSecrets": [{"name": "absent-key"}]`))},
		{name: "pull secret wrong", reason: "PullDenied", object: "bad-key", says: "cannot be pulled",
			bring: inOrder(command("create", "secret", "docker-registry", "wrong", "--docker-server=http://"+host, "--docker-username=user",
				"--docker-password=wrong"), manifest(podManifest("bad-key", image("closed/none"), `"imagePullSecrets": [{"name": "wrong"}]`)))},
		{name: "image name", reason: "InvalidImageName", object: "bad-name", says: "bad-name",
			bring: manifest(podManifest("bad-name", `{"image": "UPPER:bad:bad"}`, ""))},
		{name: "image never pulled", reason: "ErrImageNeverPull", object: "never", says: "open/never",
			bring: manifest(podManifest("never", strings.Replace(image("open/never"), "{", `{"imagePullPolicy": "Never", `, 1), ""))},
	}
}

func containerCauses() []why {
	return []why{
		{name: "crash loop", reason: "CrashLoopBackOff", object: "crash", says: "last words",
			bring: manifest(podManifest("crash", shell("echo last words; exit 3", ""), ""))},
		{name: "exit code", reason: "ContainerFailed", object: "ended", says: "exit code 7",
			bring: manifest(podManifest("ended", shell("echo no; exit 7", ""), `"restartPolicy": "Never"`))},
		{name: "probe failing", reason: "ProbeFailing", object: "unready", says: "Readiness probe",
			bring: manifest(podManifest("unready", shell("sleep 1000",
				`"readinessProbe": {"periodSeconds": 1, "exec": {"command": ["/bin/busybox", "false"]}}`), ""))},
		{name: "init container runs", reason: "InitContainer", object: "slow-init", says: "init container first is running",
			bring: manifest(podManifest("slow-init", shell("sleep 1000", ""), `"initContainers": [`+
				strings.Replace(shell("sleep 1000", ""), "{", `{"name": "first", `, 1)+`]`))},
	}
}

func endCauses() []why {
	var held string
	running := func(name, text string) func(*testing.T, *cluster, *asker) {
		return func(t *testing.T, c *cluster, _ *asker) {
			c.apply(text)
			pod := c.waitPod("name="+name, "ready", isReady)
			held = filepath.Join(c.dataDir, "kubelet", "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "v", "busy")
		}
	}
	return []why{
		{name: "finalizer", reason: "Finalizer", object: "guarded", says: "held by finalizer example.test/guard",
			bring: inOrder(running("guarded", podManifest("guarded", shell("sleep 1000", ""), "")),
				command("patch", "pod", "guarded", "-p", `{"metadata": {"finalizers": ["example.test/guard"]}}`),
				command("delete", "pod", "guarded", "--wait=false")),
			undo: command("patch", "pod", "guarded", "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)},
		{name: "claim in use", reason: "InUse", object: "used", kind: explain.KindClaim, says: "still used by pod used",
			bring: inOrder(manifest(claimManifest("used", "")), running("used", onClaim("used")), command("delete", "pvc", "used", "--wait=false")),
			undo:  command("delete", "pod", "used", "--wait=false")},
		{name: "unmount failing", reason: "FailedUnmount", object: "busy", says: "a volume cannot be unmounted",
			bring: inOrder(running("busy", onVolume("busy", `"emptyDir": {}`)), func(t *testing.T, _ *cluster, _ *asker) {
				require.NoError(t, os.Mkdir(held, 0o755))
				require.NoError(t, unix.Mount("tmpfs", held, "tmpfs", 0, "size=1m"))
				file, err := os.Create(filepath.Join(held, "open"))
				require.NoError(t, err)
				t.Cleanup(func() { _ = file.Close() }) // undo may have closed it
			}, command("delete", "pod", "busy", "--wait=false")),
			undo: func(t *testing.T, c *cluster, _ *asker) {
				require.NoError(t, unix.Unmount(held, unix.MNT_DETACH))
				_, err := c.client().CoreV1().Pods("default").Get(t.Context(), "busy", metav1.GetOptions{})
				require.NoError(t, err)
			}},
	}
}
