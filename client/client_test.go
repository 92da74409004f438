package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/client"
)

type resources = client.Resource[*corev1.ConfigMap, *corev1.ConfigMapList, *namespaced]

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

// runWithFixture runs a test with a server that lags an hour behind, and a client of it.
func runWithFixture(t *testing.T, config client.Config[*corev1.ConfigMap], test func(t *testing.T, s *fakeServer, c *resources)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		s.lag = func() time.Duration { return time.Hour }
		s.store("ADDED", configMap("old"))
		c := connect(t, s, config)
		test(t, s, c)
		time.Sleep(2 * time.Hour)
		_, err := c.List(t.Context(), client.ListOptions{})
		require.NoError(t, err)
		require.Zero(t, c.Pending(), "once the cache has caught up nothing is left")
	})
}

// connect runs an informer until the test ends and makes a client over it.
func connect(t *testing.T, s *fakeServer, config client.Config[*corev1.ConfigMap]) *resources {
	t.Helper()
	matches := func(*corev1.ConfigMap) bool { return true }
	if config.Filter != nil {
		matches = config.Filter
	}
	config.Resource = resource
	informer := s.informer(matches)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	synctest.Wait()
	c, err := client.New(s.in, informer, config)
	require.NoError(t, err)
	return c
}

// names lists the names that the options select, with a mark on those that terminate.
func names(t *testing.T, c *resources, options client.ListOptions) []string {
	t.Helper()
	list, err := c.List(t.Context(), options)
	require.NoError(t, err)
	found := []string{}
	for _, obj := range list {
		name := obj.Name
		if obj.DeletionTimestamp != nil {
			name += " (terminating)"
		}
		found = append(found, name)
		read, err := c.Get(t.Context(), obj.Namespace, obj.Name)
		require.NoError(t, err)
		require.Equal(t, obj, read)
	}
	return found
}

func TestReadsShowEachKindOfWrite(t *testing.T) {
	runWithFixture(t, client.Config[*corev1.ConfigMap]{}, func(t *testing.T, s *fakeServer, c *resources) {
		ctx := t.Context()
		created, err := c.Create(ctx, configMap("new"), metav1.CreateOptions{})
		require.NoError(t, err)
		got, err := c.Get(ctx, "ns", "new")
		require.NoError(t, err)
		require.Equal(t, created, got)
		require.ElementsMatch(t, []string{"old", "new"}, names(t, c, client.ListOptions{Namespace: "ns"}))
		require.Empty(t, names(t, c, client.ListOptions{Namespace: "n"}))

		changed := created.DeepCopy()
		changed.Data = map[string]string{"k": "v"}
		updated, err := c.Update(ctx, changed, metav1.UpdateOptions{})
		require.NoError(t, err)
		got, _ = c.Get(ctx, "ns", "new")
		require.Equal(t, updated, got)

		_, err = c.Patch(ctx, "ns", "old", client.Patch{Type: types.ApplyPatchType, Data: []byte("x")}, metav1.PatchOptions{})
		require.NoError(t, err)
		got, _ = c.Get(ctx, "ns", "old")
		require.Equal(t, "x", got.Data["patched"])

		require.NoError(t, c.Delete(ctx, "ns", "old", metav1.DeleteOptions{}))
		_, err = c.Get(ctx, "ns", "old")
		require.True(t, apierrors.IsNotFound(err))
		require.Equal(t, []string{"new"}, names(t, c, client.ListOptions{}))

		again, err := c.Create(ctx, configMap("old"), metav1.CreateOptions{})
		require.NoError(t, err)
		got, _ = c.Get(ctx, "ns", "old")
		require.Equal(t, again.UID, got.UID)
		require.Equal(t, 1, s.requests["list"], "only the deletion is looked up")
	})
}

func TestFinalizers(t *testing.T) {
	runWithFixture(t, client.Config[*corev1.ConfigMap]{}, func(t *testing.T, _ *fakeServer, c *resources) {
		kept := configMap("kept")
		kept.Finalizers = []string{"example.com/keep"}
		_, err := c.Create(t.Context(), kept, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, c.Delete(t.Context(), "ns", "kept", metav1.DeleteOptions{}))
		require.ElementsMatch(t, []string{"old", "kept (terminating)"}, names(t, c, client.ListOptions{}))
		kept, err = c.Get(t.Context(), "ns", "kept")
		require.NoError(t, err)
		kept = kept.DeepCopy()
		kept.Finalizers = nil
		_, err = c.Update(t.Context(), kept, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"old"}, names(t, c, client.ListOptions{}))
	})
}

func TestSelectorsSeeWhatWasWritten(t *testing.T) {
	config := client.Config[*corev1.ConfigMap]{Fields: map[string]func(*corev1.ConfigMap) string{
		"data.size": func(c *corev1.ConfigMap) string { return c.Data["size"] },
	}}
	runWithFixture(t, config, func(t *testing.T, s *fakeServer, c *resources) {
		red := client.ListOptions{Labels: labels.SelectorFromSet(labels.Set{"color": "red"})}
		big := client.ListOptions{Fields: fields.OneTermEqualSelector("data.size", "big")}
		require.Empty(t, names(t, c, red))
		old, err := c.Get(t.Context(), "ns", "old")
		require.NoError(t, err)
		old = old.DeepCopy()
		old.Labels, old.Data = map[string]string{"color": "red"}, map[string]string{"size": "big"}
		old, err = c.Update(t.Context(), old, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"old"}, names(t, c, red))
		require.Equal(t, []string{"old"}, names(t, c, big))
		indexed, err := c.Index(t.Context(), "color", "red")
		require.NoError(t, err)
		require.Len(t, indexed, 1)
		indexed, err = c.Index(t.Context(), "color", "")
		require.NoError(t, err)
		require.Empty(t, indexed)
		old = old.DeepCopy()
		old.Labels, old.Data = nil, nil
		_, err = c.Update(t.Context(), old, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Empty(t, names(t, c, red))
		require.Empty(t, names(t, c, big))
		byName := fields.OneTermEqualSelector("metadata.name", "old")
		require.Equal(t, []string{"old"}, names(t, c, client.ListOptions{Fields: byName}))
		_, err = c.List(t.Context(), client.ListOptions{Fields: fields.OneTermEqualSelector("spec.x", "y")})
		require.ErrorContains(t, err, `"spec.x" is not supported`)
		_, err = c.Index(t.Context(), "shape", "round")
		require.ErrorContains(t, err, "no such index")
		require.Zero(t, s.requests["list"])
	})
}

func TestObjectLeavesAFilteredCache(t *testing.T) {
	config := client.Config[*corev1.ConfigMap]{Filter: func(c *corev1.ConfigMap) bool { return c.Labels["hidden"] == "" }}
	runWithFixture(t, config, func(t *testing.T, _ *fakeServer, c *resources) {
		old, err := c.Get(t.Context(), "ns", "old")
		require.NoError(t, err)
		hidden := old.DeepCopy()
		hidden.Labels = map[string]string{"hidden": "yes"}
		hidden, err = c.Update(t.Context(), hidden, metav1.UpdateOptions{})
		require.NoError(t, err)
		_, err = c.Get(t.Context(), "ns", "old")
		require.True(t, apierrors.IsNotFound(err))
		require.Empty(t, names(t, c, client.ListOptions{}))
		shown := hidden.DeepCopy()
		shown.Labels = nil
		_, err = c.Update(t.Context(), shown, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"old"}, names(t, c, client.ListOptions{}))
	})
}

func TestDeleteCollection(t *testing.T) {
	runWithFixture(t, client.Config[*corev1.ConfigMap]{}, func(t *testing.T, s *fakeServer, c *resources) {
		for _, name := range []string{"a", "b", "c"} {
			obj := configMap(name)
			if name != "c" {
				obj.Labels = map[string]string{"color": "red"}
			}
			if name == "b" {
				obj.Finalizers = []string{"example.com/keep"}
			}
			_, err := c.Create(t.Context(), obj, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		red := metav1.ListOptions{LabelSelector: "color=red"}
		require.NoError(t, c.DeleteCollection(t.Context(), "ns", metav1.DeleteOptions{}, red))
		require.ElementsMatch(t, []string{"old", "c", "b (terminating)"}, names(t, c, client.ListOptions{}))
		require.Equal(t, 1, s.requests["list"])
	})
}

func TestLostAnswersAreLookedUpOnce(t *testing.T) {
	runWithFixture(t, client.Config[*corev1.ConfigMap]{}, func(t *testing.T, s *fakeServer, c *resources) {
		s.fault = func(verb string) (error, error) {
			if verb != "list" {
				return nil, context.DeadlineExceeded
			}
			return nil, nil
		}
		ctx := t.Context()
		_, err := c.Create(ctx, configMap("new"), metav1.CreateOptions{})
		require.Error(t, err)
		require.ElementsMatch(t, []string{"old", "new"}, names(t, c, client.ListOptions{}))
		require.Equal(t, 1, s.requests["list"])
		generated := configMap("")
		generated.GenerateName = "generated-"
		_, err = c.Create(ctx, generated, metav1.CreateOptions{})
		require.Error(t, err)
		require.Len(t, names(t, c, client.ListOptions{}), 3)
		require.Equal(t, 2, s.requests["list"])
		require.Error(t, c.Delete(ctx, "ns", "old", metav1.DeleteOptions{}))
		_, err = c.Get(ctx, "ns", "old")
		require.True(t, apierrors.IsNotFound(err))
		require.Len(t, names(t, c, client.ListOptions{}), 2)
		require.Equal(t, 3, s.requests["list"])
	})
}

func TestReadFailsOnlyWhileTheLookUpFails(t *testing.T) {
	runWithFixture(t, client.Config[*corev1.ConfigMap]{}, func(t *testing.T, s *fakeServer, c *resources) {
		down := true
		s.fault = func(string) (error, error) {
			if down {
				return errors.New("no route to host"), nil
			}
			return nil, nil
		}
		require.Error(t, c.Delete(t.Context(), "ns", "old", metav1.DeleteOptions{}))
		_, err := c.Get(t.Context(), "ns", "old")
		require.ErrorContains(t, err, "write of unknown outcome: no route to host")
		_, err = c.Get(t.Context(), "ns", "other")
		require.True(t, apierrors.IsNotFound(err), "other keys are not in doubt")
		down = false
		require.Equal(t, []string{"old"}, names(t, c, client.ListOptions{}))
	})
}

func TestDoAndDoWithoutResult(t *testing.T) {
	runWithFixture(t, client.Config[*corev1.ConfigMap]{}, func(t *testing.T, s *fakeServer, c *resources) {
		_, err := c.Do(t.Context(), "ns", "old", func(ctx context.Context) (*corev1.ConfigMap, error) {
			return s.in("ns").Patch(ctx, "old", types.ApplyPatchType, []byte("applied"), metav1.PatchOptions{})
		})
		require.NoError(t, err)
		got, _ := c.Get(t.Context(), "ns", "old")
		require.Equal(t, "applied", got.Data["patched"])
		require.Zero(t, s.requests["list"])
		require.NoError(t, c.DoWithoutResult(t.Context(), "ns", "old", func(ctx context.Context) error {
			return s.in("ns").Delete(ctx, "old", metav1.DeleteOptions{})
		}))
		require.Empty(t, names(t, c, client.ListOptions{}))
		_, err = c.UpdateStatus(t.Context(), configMap("old"), metav1.UpdateOptions{})
		require.ErrorContains(t, err, "no method UpdateStatus")
	})
}

// The typed clients of client-go fit as they are.
var _ = func(clientset kubernetes.Interface) (any, error) {
	return client.New(clientset.CoreV1().Pods, nil, client.Config[*corev1.Pod]{})
}

func TestNewRefusesBadConfig(t *testing.T) {
	s := newFakeServer()
	_, err := client.New(s.in, nil, client.Config[*corev1.ConfigMap]{})
	require.ErrorContains(t, err, "required")
	_, err = client.New(s.in, s.informer(nil), client.Config[*corev1.ConfigMap]{})
	require.ErrorContains(t, err, "Config.Resource")
}
