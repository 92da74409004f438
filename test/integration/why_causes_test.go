//go:build integration

package integration

import (
	"fmt"
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
func manifest(texts ...string) func(*testing.T, *cluster, *explainLoop) {
	return func(_ *testing.T, c *cluster, _ *explainLoop) {
		for _, text := range texts {
			c.apply(text)
		}
	}
}

// command brings a cause about by a call of kubectl.
func command(words ...string) func(*testing.T, *cluster, *explainLoop) {
	return func(_ *testing.T, c *cluster, _ *explainLoop) { c.mustRun(append([]string{"kubectl"}, words...)...) }
}

func inOrder(steps ...func(*testing.T, *cluster, *explainLoop)) func(*testing.T, *cluster, *explainLoop) {
	return func(t *testing.T, c *cluster, a *explainLoop) {
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

func claimCauses() []causeCase {
	const annotation = "storageclass.kubernetes.io/is-default-class="
	noDefault := command("annotate", "sc", "--all", annotation+"false", "--overwrite")
	oneDefault := command("annotate", "sc", "berth-loop", annotation+"true", "--overwrite")
	return []causeCase{
		{name: "no claim", reason: "ClaimMissing", object: "no-claim", wantText: "claim no-claim (volume v) does not exist",
			setUp: manifest(onClaim("no-claim"))},
		{name: "claim without class", reason: "ClaimWithoutClass", object: "no-class", wantText: "no default class",
			setUp: inOrder(noDefault, manifest(claimManifest("no-class", ""), onClaim("no-class"))), undo: oneDefault},
		{name: "class missing", reason: "ClassMissing", object: "bad-class", wantText: `"fast", which does not exist`,
			setUp: manifest(claimManifest("bad-class", `"storageClassName": "fast"`), onClaim("bad-class"))},
		{name: "no volume fits", reason: "NoMatchingVolume", object: "static", kind: explain.KindClaim, wantText: "none that is free fits",
			setUp: manifest(claimManifest("static", `"storageClassName": ""`))},
		{name: "volume missing", reason: "VolumeMissing", object: "gone", kind: explain.KindClaim, wantText: "asks for volume gone-pv",
			setUp: manifest(claimManifest("gone", `"storageClassName": "", "volumeName": "gone-pv"`))},
		{name: "no consumer", reason: "WaitForFirstConsumer", object: "idle", kind: explain.KindClaim, wantText: "there is none yet",
			setUp: manifest(claimManifest("idle", ""))},
		{name: "class without provisioner", reason: "ProvisionerSilent", object: "silent", wantText: "provisioner absent.example/disk",
			setUp: manifest(classManifest("absent", "absent.example/disk", ""), claimManifest("silent", `"storageClassName": "absent"`), onClaim("silent"))},
		{name: "provisioner failing", reason: "ProvisioningFailed", object: "failing", wantText: "cannot be provisioned",
			setUp: manifest(classManifest("odd", "berth.dev/local", `, "parameters": {"colour": "blue"}`),
				claimManifest("failing", `"storageClassName": "odd"`), onClaim("failing"))},
	}
}

func nodeCauses() []causeCase {
	return []causeCase{
		{name: "node cordoned", reason: "NodesCordoned", object: "cordoned", wantText: "cordoned",
			setUp: inOrder(command("cordon", homeNode), manifest(podManifest("cordoned", shell("sleep 1000", ""), ""))),
			undo: func(t *testing.T, c *cluster, a *explainLoop) {
				answer := a.waitReason(t, explain.KindNode, "", homeNode, "Cordoned")
				require.Contains(t, answer.Next, "uncordon")
				c.mustRun("kubectl", "uncordon", homeNode)
			}},
		{name: "node too small", reason: "InsufficientResources", object: "huge", wantText: "Insufficient cpu",
			setUp: manifest(podManifest("huge", shell("sleep 1000", `"resources": {"requests": {"cpu": "1000"}}`), ""))},
		{name: "no such node label", reason: "Unschedulable", object: "label", wantText: "didn't match Pod's node affinity/selector",
			setUp: manifest(podManifest("label", shell("sleep 1000", ""), `"nodeSelector": {"disk": "gold"}`))},
		{name: "scheduling gate", reason: "SchedulingGated", object: "gated", wantText: "example.test/gate",
			setUp: manifest(podManifest("gated", shell("sleep 1000", ""), `"schedulingGates": [{"name": "example.test/gate"}]`))},
		{name: "quota", reason: "FailedCreate", object: "limited", kind: explain.KindReplicaSet, namespace: "small", wantText: "exceeded quota",
			setUp: inOrder(command("create", "namespace", "small"), command("-n", "small", "create", "quota", "none", "--hard=pods=0"),
				manifest(`{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "limited", "namespace": "small"}, "spec": {
				"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
				"containers": [{"name": "main", "image": "`+shellImage+`"}]}}}}`))},
	}
}

func volumeCauses() []causeCase {
	return []causeCase{
		{name: "configMap missing", reason: "ConfigMapMissing", object: "no-config", wantText: "configmap default/absent",
			setUp: manifest(onVolume("no-config", `"configMap": {"name": "absent"}`))},
		{name: "secret missing", reason: "SecretMissing", object: "no-secret", wantText: "secret default/absent",
			setUp: manifest(onVolume("no-secret", `"secret": {"secretName": "absent"}`))},
		{name: "configMap of the environment missing", reason: "ConfigMapMissing", object: "no-env", wantText: "absent-env",
			setUp: manifest(podManifest("no-env", shell("sleep 1000", `"envFrom": [{"configMapRef": {"name": "absent-env"}}]`), ""))},
		{name: "hostPath of another type", reason: "HostPathType", object: "no-dir", wantText: "hostPath type check failed",
			setUp: manifest(onVolume("no-dir", `"hostPath": {"path": "/etc/hostname", "type": "Directory"}`))},
		{name: "field not supported", reason: "UnsupportedField", object: "fc", wantText: "spec.volumes[v].fc",
			setUp: manifest(onVolume("fc", `"fc": {"targetWWNs": ["50060e801049cfd1"], "lun": 0}`))},
		{name: "pod network", reason: "FailedCreatePodSandBox", object: "no-network", wantText: "not a bridge",
			setUp: func(t *testing.T, c *cluster, _ *explainLoop) {
				replaceInNetwork(t, c, "berth"+c.id(), "lo")
				c.apply(podManifest("no-network", shell("sleep 1000", ""), ""))
			},
			undo: func(t *testing.T, c *cluster, _ *explainLoop) { replaceInNetwork(t, c, "lo", "berth"+c.id()) }},
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

// imageCauses uses a registry that accepts only its user.
func imageCauses(t *testing.T) []causeCase {
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
	return []causeCase{
		{name: "image missing", reason: "ErrImagePull", object: "no-image", wantText: "open/none:v1",
			setUp: manifest(podManifest("no-image", image("open/none"), ""))},
		{name: "pull secret missing", reason: "PullSecretMissing", object: "no-key", wantText: "its pull secret absent-key does not exist",
			setUp: manifest(podManifest("no-key", image("closed/none"), `"imagePullSecrets": [{"name": "absent-key"}]`))},
		{name: "pull secret wrong", reason: "PullDenied", object: "bad-key", wantText: "cannot be pulled",
			setUp: inOrder(command("create", "secret", "docker-registry", "wrong", "--docker-server=http://"+host, "--docker-username=user",
				"--docker-password=wrong"), manifest(podManifest("bad-key", image("closed/none"), `"imagePullSecrets": [{"name": "wrong"}]`)))},
		{name: "image name", reason: "InvalidImageName", object: "bad-name", wantText: "bad-name",
			setUp: manifest(podManifest("bad-name", `{"image": "UPPER:bad:bad"}`, ""))},
		{name: "image never pulled", reason: "ErrImageNeverPull", object: "never", wantText: "open/never",
			setUp: manifest(podManifest("never", strings.Replace(image("open/never"), "{", `{"imagePullPolicy": "Never", `, 1), ""))},
	}
}

func containerCauses() []causeCase {
	return []causeCase{
		{name: "crash loop", reason: "CrashLoopBackOff", object: "crash", wantText: "last words",
			setUp: manifest(podManifest("crash", shell("echo last words; exit 3", ""), ""))},
		{name: "exit code", reason: "ContainerFailed", object: "ended", wantText: "exit code 7",
			setUp: manifest(podManifest("ended", shell("echo no; exit 7", ""), `"restartPolicy": "Never"`))},
		{name: "probe failing", reason: "ProbeFailing", object: "unready", wantText: "Readiness probe",
			setUp: manifest(podManifest("unready", shell("sleep 1000",
				`"readinessProbe": {"periodSeconds": 1, "exec": {"command": ["/bin/busybox", "false"]}}`), ""))},
		{name: "init container runs", reason: "InitContainer", object: "slow-init", wantText: "init container first is running",
			setUp: manifest(podManifest("slow-init", shell("sleep 1000", ""), `"initContainers": [`+
				strings.Replace(shell("sleep 1000", ""), "{", `{"name": "first", `, 1)+`]`))},
	}
}

func endCauses() []causeCase {
	var held string
	running := func(name, text string) func(*testing.T, *cluster, *explainLoop) {
		return func(t *testing.T, c *cluster, _ *explainLoop) {
			c.apply(text)
			pod := c.waitPod("name="+name, "ready", isReady)
			held = filepath.Join(c.dataDir, "kubelet", "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "v", "busy")
		}
	}
	return []causeCase{
		{name: "finalizer", reason: "Finalizer", object: "guarded", wantText: "held by finalizer example.test/guard",
			setUp: inOrder(running("guarded", podManifest("guarded", shell("sleep 1000", ""), "")),
				command("patch", "pod", "guarded", "-p", `{"metadata": {"finalizers": ["example.test/guard"]}}`),
				command("delete", "pod", "guarded", "--wait=false")),
			undo: command("patch", "pod", "guarded", "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)},
		{name: "claim in use", reason: "InUse", object: "used", kind: explain.KindClaim, wantText: "still used by pod used",
			setUp: inOrder(manifest(claimManifest("used", "")), running("used", onClaim("used")), command("delete", "pvc", "used", "--wait=false")),
			undo:  command("delete", "pod", "used", "--wait=false")},
		{name: "unmount failing", reason: "FailedUnmount", object: "busy", wantText: "a volume cannot be unmounted",
			setUp: inOrder(running("busy", onVolume("busy", `"emptyDir": {}`)), func(t *testing.T, _ *cluster, _ *explainLoop) {
				require.NoError(t, os.Mkdir(held, 0o755))
				require.NoError(t, unix.Mount("tmpfs", held, "tmpfs", 0, "size=1m"))
				file, err := os.Create(filepath.Join(held, "open"))
				require.NoError(t, err)
				t.Cleanup(func() { _ = file.Close() }) // undo may have closed it
			}, command("delete", "pod", "busy", "--wait=false")),
			undo: func(t *testing.T, c *cluster, _ *explainLoop) {
				require.NoError(t, unix.Unmount(held, unix.MNT_DETACH))
				_, err := c.client().CoreV1().Pods("default").Get(t.Context(), "busy", metav1.GetOptions{})
				require.NoError(t, err)
			}},
		{name: "evicted", reason: "Evicted", object: "greedy", wantText: `was evicted: it exceeded a limit of its own: Usage of EmptyDir volume "v"`,
			setUp: manifest(podManifest("greedy", shell("dd if=/dev/zero of=/v/x bs=1M count=4; sleep 1000",
				`"volumeMounts": [{"name": "v", "mountPath": "/v"}]`), `"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]`)),
			undo: command("delete", "pod", "greedy")},
		{name: "preempted", reason: "Preempting", object: "displaced", wantText: "whose resources a critical Pod needed",
			setUp: func(t *testing.T, c *cluster, _ *explainLoop) {
				node, err := c.client().CoreV1().Nodes().Get(t.Context(), homeNode, metav1.GetOptions{})
				require.NoError(t, err)
				most := fmt.Sprintf(`"resources": {"requests": {"cpu": "%dm"}}`, node.Status.Allocatable.Cpu().MilliValue()*6/10)
				c.apply(podManifest("displaced", shell("sleep 1000", most), ""))
				c.waitPod("name=displaced", "ready", isReady)
				c.apply(podManifest("critical", shell("sleep 1000", most),
					`"priorityClassName": "system-node-critical", "nodeName": "`+homeNode+`"`))
				c.waitPod("name=critical", "ready", isReady)
			},
			undo: command("delete", "pod", "displaced", "critical")},
	}
}
