package images_test

import (
	"context"
	"errors"
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

func TestPullSecrets(t *testing.T) {
	keyring := images.NewPullSecrets(secrets{
		"a": `{"auths":{"reg.example":{"auth":"dTpw"},"reg.example/team":{"username":"team","password":"x"}}}`,
		"b": `{"auths":{"*.wild.example":{"username":"w"},"https://index.docker.io/v1/":{"username":"hub"}}}`,
		"c": `broken top-secret`,
	})
	pod := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}}}
	for image, users := range map[string][]string{
		"reg.example/other:1":    {"u"},
		"reg.example/team/app:1": {"team", "u"},
		"reg.example/teams:1":    {"u"},
		"x.wild.example/app":     {"w"},
		"x.y.wild.example/app":   {},
		"nginx":                  {"hub"},
		"quay.example/app":       {},
	} {
		auths, err := keyring.Credentials(context.Background(), pod, image)
		require.NoError(t, err, image)
		got := []string{}
		for _, auth := range auths {
			got = append(got, auth.Username)
		}
		require.Equal(t, users, got, image)
	}
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "missing"}, {Name: "c"}, {Name: "a"}}
	auths, err := keyring.Credentials(context.Background(), pod, "reg.example/app")
	require.ErrorContains(t, err, `imagePullSecret "missing"`)
	require.NotContains(t, err.Error(), "top-secret")
	require.Len(t, auths, 1, "the others still count")
	require.Equal(t, "p", auths[0].Password)
}
