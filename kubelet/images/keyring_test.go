package images_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/kubelet/images"
)

type secrets map[string]string

func (s secrets) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	content, ok := s[name]
	if !ok {
		return nil, errors.New("not found")
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(content)},
	}, nil
}

// TestNodeConfig pulls with the node's credentials, after those of the Pod.
func TestNodeConfig(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	ring := images.Keyrings{images.NewPullSecrets(secrets{"a": `{"auths":{"reg.example":{"auth":"dTpw"}}}`}),
		images.NewNodeConfig(first, second)}
	pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}}}}
	users := func() (names []string) {
		auths, err := ring.Credentials(t.Context(), pod, "reg.example/team/app")
		require.NoError(t, err)
		for _, auth := range auths {
			names = append(names, auth.Auth.Username)
		}
		return names
	}
	require.Equal(t, []string{"u"}, users(), "there is no file")
	write := func(path, content string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	write(second, `{"auths":{"reg.example":{"username":"node"},"reg.example/team":{"username":"team"},"x":{}}}`)
	require.Equal(t, []string{"u", "team", "node"}, users())
	write(first, `{"auths":{"reg.example":{"username":"other"}}}`)
	require.Equal(t, []string{"u", "other"}, users(), "the first file counts, as it is now")
	write(first, `top-secret`)
	auths, err := ring.Credentials(t.Context(), pod, "reg.example/team/app")
	require.ErrorContains(t, err, "not a Docker configuration")
	require.NotContains(t, err.Error(), "top-secret")
	require.Len(t, auths, 1, "the Pod's own still count")
}

func TestPullSecrets(t *testing.T) {
	keyring := images.NewPullSecrets(secrets{
		"a": `{"auths":{"reg.example":{"auth":"dTpw"},"reg.example/team":{"username":"team","password":"x"}}}`,
		"b": `{"auths":{"*.wild.example":{"username":"w"},"https://index.docker.io/v1/":{"username":"hub"}}}`,
		"c": `broken top-secret`,
		"d": `{"auths":{"unpadded.example":{"auth":"dXNlcjpwYXNz"},"short.example":{"auth":"dTpwdw"}}}`,
	})
	pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}, {Name: "d"}}}}
	for image, users := range map[string][]string{
		"reg.example/other:1":    {"u"},
		"reg.example/team/app:1": {"team", "u"},
		"reg.example/teams:1":    {"u"},
		"x.wild.example/app":     {"w"},
		"x.y.wild.example/app":   {},
		"nginx":                  {"hub"},
		"quay.example/app":       {},
		"unpadded.example/app":   {"user"},
		"short.example/app":      {"u"},
	} {
		auths, err := keyring.Credentials(context.Background(), pod, image)
		require.NoError(t, err, image)
		got := []string{}
		for _, auth := range auths {
			got = append(got, auth.Auth.Username)
		}
		require.Equal(t, users, got, image)
	}
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "missing"}, {Name: "c"}, {Name: "a"}}
	auths, err := keyring.Credentials(context.Background(), pod, "reg.example/app")
	require.ErrorContains(t, err, `imagePullSecret "missing"`)
	require.NotContains(t, err.Error(), "top-secret")
	require.Len(t, auths, 1, "the others still count")
	require.Equal(t, "p", auths[0].Auth.Password)
}
