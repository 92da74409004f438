package pullrecords_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// TestAnotherKubeletsFiles takes over the files of upstream's kubelet, in the older API version.
func TestAnotherKubeletsFiles(t *testing.T) {
	f := newFixture(t, pullrecords.Config{})
	f.pull(image, secret("a", "mine", "h"))
	path := filepath.Join(f.dir, "pulled", f.files("pulled")[0])
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1",
		"lastUpdatedTime":"2001-09-09T01:46:40Z","imageRef":"sha256:aaaa","credentialMapping":{"reg.example/team/app":
		{"kubernetesSecrets":[{"uid":"amine","namespace":"a","name":"mine","credentialHash":"h"}]}}}`, string(data))
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(data), "v1beta1", "v1alpha1", 1)), 0o600))
	f.restart()
	require.True(t, f.may(image, secret("a", "mine", "h")))
	require.False(t, f.may(image))
}

// TestAnotherKubeletsShortNames takes over files of upstream's kubelet, which have names of images as the containers write them, and writes
// such: neither kubelet has to verify again what the other has pulled.
func TestAnotherKubeletsShortNames(t *testing.T) {
	f := newFixture(t, pullrecords.Config{})
	f.pull("acme/app:1", secret("a", "mine", "h"))
	f.pull("docker.io/acme/app@sha256:"+strings.Repeat("0", 64), secret("b", "other", "i"))
	path := filepath.Join(f.dir, "pulled", f.files("pulled")[0])
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1",
		"lastUpdatedTime":"2001-09-09T01:46:40Z","imageRef":"sha256:aaaa","credentialMapping":{
		"acme/app":{"kubernetesSecrets":[{"uid":"amine","namespace":"a","name":"mine","credentialHash":"h"}]},
		"docker.io/acme/app":{"kubernetesSecrets":[{"uid":"bother","namespace":"b","name":"other","credentialHash":"i"}]}}}`, string(data))
	f.restart()
	for _, name := range []string{"acme/app:2", "docker.io/acme/app:2", "index.docker.io/acme/app"} {
		require.True(t, f.may(name, secret("a", "mine", "h")), name)
		require.True(t, f.may(name, secret("b", "other", "i")), name)
		require.False(t, f.may(name), name)
	}
	require.False(t, f.may("app:1", secret("a", "mine", "h")), "another image")
}

// TestAnotherKubeletsIntent of an image without its registry and tag was left when upstream's kubelet died during the pull.
func TestAnotherKubeletsIntent(t *testing.T) {
	for _, named := range []string{"acme/app", "acme/app:latest", "docker.io/acme/app"} {
		f := newFixture(t, pullrecords.Config{})
		require.NoError(t, os.MkdirAll(filepath.Join(f.dir, "pulling"), 0o700))
		path := filepath.Join(f.dir, "pulling", fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(named))))
		require.NoError(t, os.WriteFile(path,
			[]byte(`{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"`+named+`"}`), 0o600))
		require.False(t, f.may("acme/app"), named)
		require.Len(t, f.files("pulling"), 1)
		require.NoFileExists(t, path)
		f.restart()
		f.list(&runtimeapi.Image{Id: id, RepoTags: []string{"docker.io/acme/app:latest"}})
		require.Empty(t, f.files("pulling"))
		require.Len(t, f.files("pulled"), 1)
		require.False(t, f.may("docker.io/acme/app"), "without a login")
	}
}
