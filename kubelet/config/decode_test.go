package config_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// manifest is a Pod of the name, with lines added to its spec.
func manifest(name string, spec ...string) string {
	lines := append([]string{"  containers: [{name: c, image: registry:5000/app}]"}, spec...)
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n" + strings.Join(lines, "\n") + "\n"
}

var origin = config.SourceInfo{Source: config.SourceFile, Location: "/etc/pods/a.yaml", NodeName: "Node1"}

func decodeOne(t *testing.T, data string, o config.SourceInfo) *corev1.Pod {
	t.Helper()
	pods, err := config.Decode([]byte(data), o)
	require.NoError(t, err)
	require.Len(t, pods, 1)
	return pods[0]
}

func TestDecodedPodIsComplete(t *testing.T) {
	pod := decodeOne(t, manifest("p"), origin)
	require.Equal(t, "p-node1", pod.Name)
	require.Equal(t, "default", pod.Namespace)
	require.Equal(t, "Node1", pod.Spec.NodeName)
	require.Equal(t, corev1.PodPending, pod.Status.Phase)
	require.Equal(t, config.SourceFile, pod.Annotations[config.SourceAnnotation])
	require.Equal(t, string(pod.UID), pod.Annotations[config.HashAnnotation])
	require.Equal(t, corev1.RestartPolicyAlways, pod.Spec.RestartPolicy)
	require.Equal(t, corev1.DNSClusterFirst, pod.Spec.DNSPolicy)
	require.EqualValues(t, 30, *pod.Spec.TerminationGracePeriodSeconds)
	require.True(t, *pod.Spec.EnableServiceLinks)
	require.Equal(t, corev1.PullAlways, pod.Spec.Containers[0].ImagePullPolicy, "the colon is the port's")
	require.Equal(t, "/dev/termination-log", pod.Spec.Containers[0].TerminationMessagePath)
	require.Contains(t, pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: "NoExecute"})
}

// A negative grace period means 1 second, to the API server as well: old manifests have it.
func TestNegativeGracePeriod(t *testing.T) {
	pod := decodeOne(t, manifest("p", "  terminationGracePeriodSeconds: -1"), origin)
	require.EqualValues(t, -1, *pod.Spec.TerminationGracePeriodSeconds)
	require.EqualValues(t, 1, kuberuntime.PodGracePeriod(pod, nil))
}

func TestStaticPodToleratesNoExecuteOnce(t *testing.T) {
	pod := decodeOne(t, manifest("p", "  tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 5}, {key: k, effect: NoExecute}]"), origin)
	require.Equal(t, []corev1.Toleration{{Key: "k", Effect: "NoExecute"}, {Operator: "Exists", Effect: "NoExecute"}}, pod.Spec.Tolerations)
}

func TestIdentityFollowsFromContentAndOrigin(t *testing.T) {
	first := decodeOne(t, manifest("p"), origin).UID
	require.Equal(t, first, decodeOne(t, manifest("p"), origin).UID, "the same again")
	require.Equal(t, first, decodeOne(t, "# a comment\n"+manifest("p"), origin).UID, "what is written, not how")
	elsewhere := origin
	elsewhere.Location = "/etc/pods/b.yaml"
	seen := map[string]bool{string(first): true}
	for _, uid := range []string{
		string(decodeOne(t, manifest("p"), elsewhere).UID),
		string(decodeOne(t, manifest("p", "  hostNetwork: true"), origin).UID),
		string(decodeOne(t, manifest("p"), config.SourceInfo{Source: config.SourceFile, Location: origin.Location}).UID),
	} {
		require.False(t, seen[uid], "another pod")
		seen[uid] = true
	}
	require.Equal(t, "mine", string(decodeOne(t, strings.Replace(manifest("p"), "name: p", "name: p, uid: mine", 1), origin).UID))
}

func TestLists(t *testing.T) {
	list := `{"apiVersion":"v1","kind":"PodList","items":[
	  {"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}},
	  {"metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}`
	pods, err := config.Decode([]byte(list), origin)
	require.NoError(t, err)
	require.Len(t, pods, 2)
	pods, err = config.Decode([]byte("apiVersion: v1\nkind: List\nitems:\n- "+
		strings.ReplaceAll(strings.TrimSpace(manifest("p")), "\n", "\n  ")), origin)
	require.NoError(t, err)
	require.Len(t, pods, 1)
}

func TestRefused(t *testing.T) {
	for want, data := range map[string]string{
		"manifest is empty":          "---\n# nothing\n",
		"several YAML documents":     manifest("a") + "---\n" + manifest("b"),
		"unknown field":              manifest("p", "  hostnetwork: true"),
		"kind Deployment is not run": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n",
		"kind Secret is not run":     "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n",
		"spec.serviceAccountName":    manifest("p", "  serviceAccountName: x"),
		"spec.imagePullSecrets":      manifest("p", "  imagePullSecrets: [{name: x}]"),
		"spec.resourceClaims":        manifest("p", "  resourceClaims: [{name: x}]"),
		"volumes[0].secret":          manifest("p", "  volumes: [{name: v, secret: {secretName: s}}]"),
		"volumes[0].configMap":       manifest("p", "  volumes: [{name: v, configMap: {name: s}}]"),
		"persistentVolumeClaim":      manifest("p", "  volumes: [{name: v, persistentVolumeClaim: {claimName: s}}]"),
		"projected.sources[0]":       manifest("p", "  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]"),
		"hostPath.path":              manifest("p", "  volumes: [{name: v, hostPath: {path: /a/../../etc}}]"),
		"another volume":             manifest("p", "  volumes: [{name: v}, {name: v}]"),
		"metadata.name":              manifest("../p"),
		"metadata.generateName":      strings.Replace(manifest("p"), "name: p", "generateName: p", 1),
		"metadata.uid":               strings.Replace(manifest("p"), "name: p", "name: p, uid: ../../x", 1),
		`metadata.uid "a_b"`:         strings.Replace(manifest("p"), "name: p", "name: p, uid: a_b", 1),
		`resources.limits.memory: quantity "1e-99999999"`: strings.Replace(manifest("p"), "image: registry:5000/app",
			`image: i, resources: {limits: {memory: "1e-99999999"}}`, 1),
		`items[].spec.volumes[].emptyDir.sizeLimit: quantity "1e-99999999"`: "apiVersion: v1\nkind: PodList\nitems:\n- " +
			strings.ReplaceAll(strings.TrimSpace(manifest("p", `  volumes: [{name: v, emptyDir: {sizeLimit: "1e-99999999"}}]`)), "\n", "\n  ") + "\n",
		"metadata.namespace":       strings.Replace(manifest("p"), "name: p", "name: p, namespace: a/b", 1),
		"containers[0].name":       strings.Replace(manifest("p"), "name: c", "name: ../c", 1),
		"containers[0].image":      strings.Replace(manifest("p"), ", image: registry:5000/app", "", 1),
		"another container":        manifest("p", "  initContainers: [{name: c, image: i}]"),
		"spec.restartPolicy":       manifest("p", "  restartPolicy: Sometimes"),
		"activeDeadlineSeconds":    manifest("p", "  activeDeadlineSeconds: 10000000000"),
		"spec.ephemeralContainers": manifest("p", "  ephemeralContainers: [{name: e, image: i}]"),
		"env[0].valueFrom": strings.Replace(manifest("p"), "image: registry:5000/app",
			"image: i, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]", 1),
		"volumeMounts[0].subPath": strings.Replace(manifest("p", "  volumes: [{name: v}]"), "image: registry:5000/app",
			"image: i, volumeMounts: [{name: v, mountPath: /m, subPath: ../x}]", 1),
		"larger than": strings.Repeat("#", config.MaxManifest+1),
	} {
		t.Run(want, func(t *testing.T) {
			_, err := config.Decode([]byte(data), origin)
			require.ErrorContains(t, err, want)
		})
	}
}

func TestManifestCannotPretend(t *testing.T) {
	data := strings.Replace(manifest("p"), "name: p", "name: p, finalizers: [a/b], deletionTimestamp: 2020-01-01T00:00:00Z, "+
		"annotations: {kubernetes.io/config.source: api, kubernetes.io/config.hash: x, mine: own}", 1) + "status: {phase: Running}\n"
	pod := decodeOne(t, data, origin)
	require.Nil(t, pod.DeletionTimestamp)
	require.Empty(t, pod.Finalizers)
	require.Equal(t, corev1.PodPending, pod.Status.Phase)
	require.Equal(t, config.SourceFile, pod.Annotations[config.SourceAnnotation])
	require.NotEqual(t, "x", pod.Annotations[config.HashAnnotation])
	require.Equal(t, "own", pod.Annotations["mine"])
}

func TestPullPolicyFollowsTheTag(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"a": "Always", "a:latest": "Always", "a:1": "IfNotPresent", "r:5/a": "Always", "r:5/a:1": "IfNotPresent",
		"a@sha256:" + strings.Repeat("0", 64): "IfNotPresent", "a:latest@sha256:" + strings.Repeat("0", 64): "Always",
	} {
		volume := "  volumes: [{name: v, image: {reference: '" + image + "'}}]"
		pod := decodeOne(t, strings.Replace(manifest("p", volume), "registry:5000/app", `"`+image+`"`, 1), origin)
		require.Equal(t, want, pod.Spec.Containers[0].ImagePullPolicy, image)
		require.Equal(t, want, pod.Spec.Volumes[0].Image.PullPolicy, image)
	}
}

// A quantity whose exponent no quantity needs takes minutes to decode.
func TestQuantityWithLargeExponent(t *testing.T) {
	huge := "  overhead: {cpu: \"1e-999999999\"}"
	list := `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","spec":{"overhead":{"cpu":1e-999999999}}}]}`
	for _, text := range []string{manifest("p", huge), list, strings.Replace(list, "List", "PodList", 1)} {
		_, err := config.Decode([]byte(text), origin)
		require.ErrorContains(t, err, "spec.overhead.cpu: quantity")
	}
}

// FuzzDecode: whatever a manifest holds, it is refused with an error or gives Pods whose names are safe as paths.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(manifest("p")))
	f.Add([]byte(manifest("p", "  volumes: [{name: v, hostPath: {path: /}}]", "  hostNetwork: true")))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{"kind":"Pod","apiVersion":"v1"},null,7]}`))
	f.Add([]byte("a: &a [*a,*a]"))
	f.Add([]byte(manifest("p", "  overhead: {cpu: \"1e-999999999\", memory: 1Ei}")))
	f.Add([]byte("apiVersion: v1\nkind: Pod\nspec: {containers: [null, {livenessProbe: {}}], volumes: [{}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, err := config.Decode(data, origin)
		if err != nil {
			require.Empty(t, pods)
			return
		}
		for _, pod := range pods {
			for _, name := range []string{pod.Name, pod.Namespace, string(pod.UID)} {
				require.NotEmpty(t, name)
				require.NotContains(t, name, "/")
				require.NotEqual(t, "..", name)
			}
			for i := range pod.Spec.Containers {
				require.NotContains(t, pod.Spec.Containers[i].Name, "/")
			}
		}
	})
}
