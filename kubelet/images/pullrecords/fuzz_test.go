package pullrecords

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"
)

// FuzzFiles starts with an arbitrary record and intent of an image: a Pod without credentials may use the image only if the record says that
// it was pulled without any, or that every Pod of the node may.
func FuzzFiles(f *testing.F) {
	const image, id = "reg.example/app:1", "sha256:1"
	head := `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"` + id + `",`
	f.Add([]byte(head+`"credentialMapping":{"reg.example/app":{"kubernetesSecrets":[{"uid":"u","namespace":"n","name":"s","credentialHash":"h"}]}}}`), []byte(`{}`))
	f.Add([]byte(head+`"credentialMapping":{"reg.example/app":{"nodePodsAccessible":true}}}`), []byte(`null`))
	f.Add([]byte(head+`"lastUpdatedTime":null,"credentialMapping":null}`), []byte(`{"kind":"ImagePullIntent","image":"reg.example/app:1"}`))
	f.Add([]byte(`{"kind":"ImagePulledRecord"`), []byte(``))
	f.Fuzz(func(t *testing.T, record, intent []byte) {
		dir := t.TempDir()
		for path, content := range map[string][]byte{
			filepath.Join(recordsDir, fileName(id)): record, filepath.Join(intentsDir, fileName(image)): intent,
		} {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, path), content, 0o600))
		}
		m, err := New(Deps{Clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))}, Config{Dir: dir, Policy: kubeletconfig.AlwaysVerify})
		require.NoError(t, err)
		allowed, err := m.Allowed(image, id, func() []Source { return nil })
		require.NoError(t, err)
		if allowed {
			read, err := m.readRecord(fileName(id))
			require.NoError(t, err, "a Pod may use an image whose record is damaged")
			require.True(t, credentialsFor(read, image).NodePodsAccessible)
		}
		left := 0
		if read, err := m.readRecord(fileName(id)); err == nil && !read.LastUpdatedTime.Time.Before(time.Unix(3e9, 0)) {
			left = 1 // it is newer than the list of images
		}
		m.Reconcile([]*runtimeapi.Image{{Id: id, RepoTags: []string{image}}}, time.Unix(2e9, 0))
		m.Reconcile(nil, time.Unix(3e9, 0))
		intents, records := m.Counts()
		require.LessOrEqual(t, intents+records, left, "files of images that do not exist are left")
	})
}
