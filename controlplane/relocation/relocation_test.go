package relocation

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

func stored(t *testing.T, source corev1.PersistentVolumeSource) []byte {
	t.Helper()
	volume := &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: "data", UID: "u", Annotations: map[string]string{"a": "b"}},
		Spec:       corev1.PersistentVolumeSpec{PersistentVolumeSource: source},
	}
	data, err := runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), volume)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestVolumesFollowTheDataDirectory(t *testing.T) {
	for path, want := range map[string]string{
		"/var/lib/berth/volumes/a": "/forks/b/volumes/a",
		"/var/lib/berth2/a":        "",
		"/srv/data":                "",
		"/var/lib/berth":           "", // no volume of the cluster
	} {
		for _, source := range []corev1.PersistentVolumeSource{
			{Local: &corev1.LocalVolumeSource{Path: path}}, {HostPath: &corev1.HostPathVolumeSource{Path: path}},
		} {
			data, changed, err := moved(stored(t, source), "/var/lib/berth", "/forks/b")
			if err != nil {
				t.Fatal(err)
			}
			if changed != (want != "") {
				t.Errorf("%s: changed %v", path, changed)
			}
			if !changed {
				continue
			}
			object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			volume := object.(*corev1.PersistentVolume)
			if got := *paths(volume)[0]; got != want || kind.Kind != "PersistentVolume" || volume.UID != "u" || volume.Annotations["a"] != "b" {
				t.Errorf("%s became %s in %v", path, got, volume)
			}
			if again, changed, err := moved(data, "/var/lib/berth", "/forks/b"); err != nil || changed {
				t.Errorf("a second time: %q %v %v", again, changed, err)
			}
		}
	}
	if _, _, err := moved([]byte("k8s\x00damaged"), "/a", "/b"); err == nil {
		t.Error("damaged data is no error")
	}
}

// TestDataDirectoryMovesAlongItsOwnPath has the new path above and below the former one.
func TestDataDirectoryMovesAlongItsOwnPath(t *testing.T) {
	for _, c := range []struct{ from, to string }{{"/srv", "/srv/berth"}, {"/srv/berth", "/srv"}} {
		source := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: c.from + "/volumes/a"}}
		data, changed, err := moved(stored(t, source), c.from, c.to)
		if err != nil || !changed {
			t.Fatalf("from %s to %s: %v %v", c.from, c.to, changed, err)
		}
		if again, changed, err := moved(data, c.from, c.to); err != nil || changed {
			t.Errorf("from %s to %s, a second time: %q %v %v", c.from, c.to, again, changed, err)
		}
	}
}

func TestFormerPathIsRecorded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "one")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	expect := func(dir, want string) {
		t.Helper()
		if former, err := Former(dir); err != nil || former != want {
			t.Errorf("former path of %s: %q, %v; want %q", dir, former, err, want)
		}
	}
	expect(dir, "")
	if err := Record(dir); err != nil {
		t.Fatal(err)
	}
	expect(dir, "")
	other := dir + "-moved"
	if err := os.Rename(dir, other); err != nil {
		t.Fatal(err)
	}
	expect(other, dir)
}

// TestDamagedRecordIsSetAside expects the path to be taken for the same, and recorded again.
func TestDamagedRecordIsSetAside(t *testing.T) {
	for way, damage := range map[string]func(path string) error{
		"empty":           func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"foreign":         func(path string) error { return os.WriteFile(path, []byte("nothing of that kind"), 0o600) },
		"directory":       func(path string) error { return os.Mkdir(path, 0o700) },
		"link to nothing": func(path string) error { return os.Symlink("/nowhere", path) },
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, fileName)
		if err := damage(path); err != nil {
			t.Fatal(err)
		}
		if former, err := Former(dir); err != nil || former != "" {
			t.Errorf("%s: former path %q, %v", way, former, err)
		}
		if _, err := os.Lstat(path + ".damaged"); err != nil {
			t.Errorf("%s: it is not kept: %v", way, err)
		}
		if err := Record(dir); err != nil {
			t.Errorf("%s: %v", way, err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != dir+"\n" {
			t.Errorf("%s: recorded %q, %v", way, data, err)
		}
	}
}
