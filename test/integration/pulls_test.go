//go:build integration

package integration

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/agent"
)

// pullFixture creates Pods with images of a registry.
type pullFixture struct {
	t      *testing.T
	client *kubernetes.Clientset
	node   string
	next   int
}

// pullCase describes a Pod.
type pullCase struct {
	namespace, image, secret, account string
	policy                            corev1.PullPolicy
}

// podOutcome creates the Pod, waits until it runs or its container waits for a reason of images, and returns that reason. It deletes
// the Pod again.
func (p *pullFixture) podOutcome(w pullCase) (reason string, events []string) {
	p.t.Helper()
	p.next++
	if w.namespace == "" {
		w.namespace = metav1.NamespaceDefault
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pull-%d", p.next), Namespace: w.namespace},
		Spec: corev1.PodSpec{
			NodeName: p.node, TerminationGracePeriodSeconds: ptr.To[int64](0), ServiceAccountName: w.account,
			Containers: []corev1.Container{{
				Name: "main", Image: w.image, ImagePullPolicy: w.policy, Command: []string{"/bin/busybox", "sleep", "3600"},
			}},
		},
	}
	if w.secret != "" {
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: w.secret}}
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), waitTimeout)
	defer cancel()
	var made *corev1.Pod
	require.NoError(p.t, retryUntil(ctx, func() (err error) { // the service account may come after its namespace
		made, err = p.client.CoreV1().Pods(w.namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}, nil))
	watcher, err := p.client.CoreV1().Pods(w.namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + made.Name, ResourceVersion: made.ResourceVersion,
	})
	require.NoError(p.t, err)
	defer watcher.Stop()
	for reason = "?"; reason == "?"; {
		select {
		case event := <-watcher.ResultChan():
			if seen, ok := event.Object.(*corev1.Pod); ok {
				reason = pullOutcome(seen)
			}
		case <-ctx.Done():
			require.NoError(p.t, ctx.Err(), "pod %+v neither runs nor fails", w)
		}
	}
	list, err := p.client.CoreV1().Events(w.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + made.Name})
	require.NoError(p.t, err)
	for _, event := range list.Items {
		events = append(events, event.Reason+": "+event.Message)
	}
	require.NoError(p.t, p.client.CoreV1().Pods(w.namespace).Delete(ctx, made.Name, metav1.DeleteOptions{}))
	return reason, events
}

// pullOutcome returns the reason of a failed pull: "" if the Pod runs, "?" if that is not known yet.
func pullOutcome(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running != nil {
			return ""
		}
		if s.State.Waiting != nil {
			switch reason := s.State.Waiting.Reason; reason {
			case "ErrImagePull", "ImagePullBackOff":
				return "ErrImagePull"
			case "ErrImageNeverPull":
				return reason
			}
		}
	}
	return "?"
}

func (p *pullFixture) expect(want string, w pullCase) {
	p.t.Helper()
	reason, events := p.podOutcome(w)
	require.Equal(p.t, want, reason, "%+v: %v", w, events)
}

func (p *pullFixture) secret(namespace, name, content string) {
	p.t.Helper()
	_, err := p.client.CoreV1().Secrets(namespace).Create(p.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(content)},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
}

// provider writes a credential provider, which is a program that stores its input and prints the login, and its
// configuration.
func provider(t *testing.T, r *privateRegistry, dir string) (config string) {
	t.Helper()
	answer, err := json.Marshal(credentialproviderv1.CredentialProviderResponse{
		TypeMeta:     metav1.TypeMeta{APIVersion: "credentialprovider.kubelet.k8s.io/v1", Kind: "CredentialProviderResponse"},
		CacheKeyType: credentialproviderv1.ImagePluginCacheKeyType,
		Auth: map[string]credentialproviderv1.AuthConfig{
			r.address(): {Username: registryUser, Password: registryPassword},
		},
	})
	require.NoError(t, err)
	script := fmt.Sprintf("#!/bin/sh\ncat > %s/asked\ncat <<'END'\n%s\nEND\n", dir, answer)
	config = filepath.Join(dir, "providers.yaml")
	require.NoError(t, errors.Join(os.WriteFile(filepath.Join(dir, "helper"), []byte(script), 0o700),
		os.WriteFile(config, []byte(`{apiVersion: kubelet.config.k8s.io/v1, kind: CredentialProviderConfig, providers: [{
			name: helper, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: ["`+r.address()+`/tools"],
			defaultCacheDuration: 1h, tokenAttributes: {serviceAccountTokenAudience: registry, requireServiceAccount: true,
			cacheType: ServiceAccount, requiredServiceAccountAnnotationKeys: [role]}}]}`), 0o600)))
	return config
}

// TestPrivateImages pulls an image of a registry with a login for one tenant, and then runs Pods of others on the same
// node, with a real API server, kubelet, containerd and registry.
func TestPrivateImages(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	r, programs := newRegistry(t), t.TempDir()
	app, tool := r.push("team/app"), r.push("tools/tool")
	a := newTestNode(t, t.TempDir())
	configure := func(config *agent.Config) {
		config.Images.CredentialProviders, config.Images.CredentialProvidersDir = provider(t, r, programs), programs
	}
	a.start(c.admin(), configure)
	a.nodeReady(c.client())
	p := &pullFixture{t: t, client: c.client(), node: a.name}
	_, err := p.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.secret("default", "right", r.login(registryUser, registryPassword))
	p.secret("other", "copy", r.login(registryUser, registryPassword))
	p.secret("other", "wrong", r.login(registryUser, "guessed"))

	p.expect("ErrImageNeverPull", pullCase{image: app, policy: corev1.PullNever, secret: "right"})
	p.expect("ErrImagePull", pullCase{image: app, policy: corev1.PullIfNotPresent})
	p.expect("ErrImagePull", pullCase{image: app, policy: corev1.PullIfNotPresent, secret: "gone"})
	c.waitEvents("default", fmt.Sprintf("pull-%d", p.next), "FailedToRetrieveImagePullSecret: Unable to use some image pull secrets")
	p.expect("", pullCase{image: app, policy: corev1.PullIfNotPresent, secret: "right"})
	others := func() {
		t.Helper()
		p.expect("ErrImagePull", pullCase{namespace: "other", image: app, policy: corev1.PullIfNotPresent})
		p.expect("ErrImagePull", pullCase{namespace: "other", image: app, policy: corev1.PullIfNotPresent, secret: "wrong"})
		p.expect("ErrImageNeverPull", pullCase{namespace: "other", image: app, policy: corev1.PullNever})
		p.expect("ErrImageNeverPull", pullCase{namespace: "other", image: app, policy: corev1.PullNever, secret: "wrong"})
		p.expect("", pullCase{namespace: "other", image: app, policy: corev1.PullNever, secret: "copy"})
	}
	others()

	t.Run("program", func(t *testing.T) {
		p := &pullFixture{t: t, client: p.client, node: p.node, next: 100}
		for _, account := range []string{"puller", "bare"} {
			made := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
			if account == "puller" {
				made.Annotations = map[string]string{"role": "reader"}
			}
			_, err := p.client.CoreV1().ServiceAccounts("default").Create(t.Context(), made, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		p.expect("ErrImagePull", pullCase{image: tool, policy: corev1.PullIfNotPresent, account: "bare"})
		p.expect("", pullCase{image: tool, policy: corev1.PullIfNotPresent, account: "puller"})
		p.expect("", pullCase{image: tool, policy: corev1.PullNever, account: "puller"})
		p.expect("ErrImageNeverPull", pullCase{image: tool, policy: corev1.PullNever, account: "bare"})
		data, err := os.ReadFile(filepath.Join(programs, "asked"))
		require.NoError(t, err)
		var asked credentialproviderv1.CredentialProviderRequest
		require.NoError(t, json.Unmarshal(data, &asked))
		require.Equal(t, r.address()+"/tools/tool", asked.Image)
		require.Equal(t, map[string]string{"role": "reader"}, asked.ServiceAccountAnnotations)
		var claims struct {
			Subject  string   `json:"sub"`
			Audience []string `json:"aud"`
			Bound    struct {
				Pod struct{ Name string } `json:"pod"`
			} `json:"kubernetes.io"`
		}
		parts := strings.Split(asked.ServiceAccountToken, ".")
		require.Len(t, parts, 3)
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(payload, &claims))
		require.Equal(t, "system:serviceaccount:default:puller", claims.Subject)
		require.Equal(t, []string{"registry"}, claims.Audience)
		require.Equal(t, "pull-102", claims.Bound.Pod.Name)
		a.requireMetrics(t, "kubelet_credential_provider_plugin_duration", "kubelet_credential_provider_config_info", "kubelet_node_startup_duration_seconds")
	})

	// The next kubelet has all records, and sends no request to the registry.
	a.stop()
	r.setAway(true)
	a.start(c.admin(), configure)
	others()
	p.expect("", pullCase{image: app, policy: corev1.PullIfNotPresent, secret: "right"})
	p.expect("", pullCase{image: tool, policy: corev1.PullIfNotPresent, account: "puller"})
	p.expect("", pullCase{image: shellImage, policy: corev1.PullIfNotPresent}) // which was imported
	r.setAway(false)

	// A kubelet that is killed during a pull allows no Pod to use the image without credentials.
	p.node = homeNode
	r.hold()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cut"}, Spec: corev1.PodSpec{
		NodeName: p.node, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "right"}},
		Containers: []corev1.Container{{Name: "main", Image: app, Command: []string{"/bin/busybox", "sleep", "3600"}}},
	}}
	_, err = p.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	<-r.waiting
	notes := filepath.Join(c.dataDir, "kubelet", "image_manager")
	require.Len(t, glob(filepath.Join(notes, "pulling", "sha256-*")), 1)
	c.killBerth()
	require.Len(t, glob(filepath.Join(notes, "pulling", "sha256-*")), 1)
	r.release()
	c.up("--unsafe-no-fsync")
	p.client = c.client()
	require.NoError(t, retryUntil(t.Context(), func() error {
		seen, err := p.client.CoreV1().Pods("default").Get(t.Context(), "cut", metav1.GetOptions{})
		if err == nil && !isReady(seen) {
			err = fmt.Errorf("pod cut: %+v", seen.Status)
		}
		return err
	}, nil))
	others()
}

// requireMetrics fails unless each of the kubelet's metrics has a value or a count above 0.
func (a *testNode) requireMetrics(t *testing.T, names ...string) {
	t.Helper()
	families, err := a.kubelet.Metrics().Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			values[family.GetName()] += metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	for _, name := range names {
		require.Positive(t, values[name], name)
	}
}
