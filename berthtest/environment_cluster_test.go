//go:build integration

package berthtest_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	envtest "github.com/berth-dev/berth/berthtest"
)

// TestEnvironment is written as a suite for envtest is.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	env := &envtest.Environment{}
	greetingsWith(env)
	config, err := env.Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, env.Stop()) })
	serveWebhook(t, env.WebhookInstallOptions)

	require.NoError(t, createGreeting(t, config, "hello"), "the API server reaches the webhook")
	require.ErrorContains(t, createGreeting(t, config, "bad"), "no bad greetings")

	anna, err := env.AddUser(envtest.User{Name: "anna", Groups: []string{"testers"}}, nil)
	require.NoError(t, err)
	_, err = kubernetes.NewForConfigOrDie(anna.Config()).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, `"anna"`)
	kubectl, err := anna.Kubectl()
	require.NoError(t, err)
	whoami, _, err := kubectl.Run("auth", "whoami")
	require.NoError(t, err)
	text, err := io.ReadAll(whoami)
	require.NoError(t, err)
	require.Contains(t, string(text), "testers")
	out, _, err := env.ControlPlane.KubeCtl().Run("get", "greetings", "-o", "name")
	require.NoError(t, err)
	text, err = io.ReadAll(out)
	require.NoError(t, err)
	require.Contains(t, string(text), "hello")

	podsRunAndNamespacesGoAway(t, kubernetes.NewForConfigOrDie(config))
}

func podsRunAndNamespacesGoAway(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "own"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	grace := int64(0)
	_, err = client.CoreV1().Pods("own").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "main"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "main", Image: "berth.local/pause:v1"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		pod, err := client.CoreV1().Pods("own").Get(t.Context(), "main", metav1.GetOptions{})
		require.NoError(c, err)
		require.Equal(c, corev1.PodRunning, pod.Status.Phase)
	}, 2*time.Minute, 100*time.Millisecond)
	require.NoError(t, client.CoreV1().Namespaces().Delete(t.Context(), "own", metav1.DeleteOptions{}))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), "own", metav1.GetOptions{})
		require.True(c, apierrors.IsNotFound(err))
	}, 2*time.Minute, 100*time.Millisecond)
}

// greetingsWith adds greetings to the environment, and a webhook that admits them.
func greetingsWith(env *envtest.Environment) {
	path, none := "/validate", registrationv1.SideEffectClassNone
	env.CRDs = []*apiextensionsv1.CustomResourceDefinition{greetings()}
	env.WebhookInstallOptions.ValidatingWebhooks = []*registrationv1.ValidatingWebhookConfiguration{{
		ObjectMeta: metav1.ObjectMeta{Name: "greetings"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "greetings.test.berth.dev", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registrationv1.WebhookClientConfig{Service: &registrationv1.ServiceReference{Name: "webhook", Namespace: "system", Path: &path}},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{"test.berth.dev"}, APIVersions: []string{"v1"}, Resources: []string{"greetings"}},
			}},
		}},
	}}
}

// createGreeting creates a greeting.
func createGreeting(t *testing.T, config *rest.Config, name string) error {
	t.Helper()
	objects := dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "test.berth.dev", Version: "v1", Resource: "greetings"})
	_, err := objects.Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "test.berth.dev/v1", "kind": "Greeting", "metadata": map[string]any{"name": name},
	}}, metav1.CreateOptions{})
	return err
}

func greetings() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "greetings.test.berth.dev"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "test.berth.dev", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "greetings", Singular: "greeting", Kind: "Greeting", ListKind: "GreetingList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
}

// serveWebhook serves a webhook that refuses objects with the name bad.
func serveWebhook(t *testing.T, options envtest.WebhookInstallOptions) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(options.LocalServingHost, strconv.Itoa(options.LocalServingPort)))
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "bad"}
		if !review.Response.Allowed {
			review.Response.Result = &metav1.Status{Message: "no bad greetings"}
		}
		_ = json.NewEncoder(w).Encode(review)
	})}
	served := make(chan error, 1)
	go func() {
		served <- server.ServeTLS(listener, filepath.Join(options.LocalServingCertDir, "tls.crt"), filepath.Join(options.LocalServingCertDir, "tls.key"))
	}()
	t.Cleanup(func() {
		require.NoError(t, server.Shutdown(context.Background()))
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
}

// TestAPIOnly uses an Environment whose objects stay as they are written, but for garbage and namespaces.
func TestAPIOnly(t *testing.T) {
	t.Parallel()
	env := &envtest.Environment{APIOnly: true}
	config, err := env.Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, env.Stop()) })
	client := kubernetes.NewForConfigOrDie(config)
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, nodes.Items)
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	_, err = client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "own"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	pod, err := client.CoreV1().Pods("own").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "main"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "berth.local/pause:v1"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err, "without a service account")
	require.Empty(t, pod.Spec.Volumes)
	owner, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "owned", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, client.CoreV1().ConfigMaps("default").Delete(t.Context(), "owner", metav1.DeleteOptions{}))
	grace := int64(0)
	require.NoError(t, client.CoreV1().Pods("own").Delete(t.Context(), "main", metav1.DeleteOptions{GracePeriodSeconds: &grace}))
	require.NoError(t, client.CoreV1().Namespaces().Delete(t.Context(), "own", metav1.DeleteOptions{}))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "owned", metav1.GetOptions{})
		require.True(c, apierrors.IsNotFound(err), "%v", err)
		_, err = client.CoreV1().Namespaces().Get(t.Context(), "own", metav1.GetOptions{})
		require.True(c, apierrors.IsNotFound(err), "%v", err)
	}, 2*time.Minute, 100*time.Millisecond)
	after, err := client.CoreV1().Nodes().Get(t.Context(), "mine", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, node, after)
}
