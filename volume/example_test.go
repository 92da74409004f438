package volume_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

// greetings is a whole volume plugin. Its volumes hold one file, a greeting for the Pod.
type greetings struct{}

func (greetings) Name() string { return "example.com/greeting" }

func (g greetings) CanSupport(spec volume.Spec) bool {
	return spec.Volume != nil && spec.Volume.FlexVolume != nil && spec.Volume.FlexVolume.Driver == g.Name()
}

func (greetings) SetUp(_ context.Context, req volume.Request) (volume.Mount, error) {
	err := os.MkdirAll(req.Dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(req.Dir, "greeting"), []byte("Hello, "+req.Pod.Name+"!"), 0o644)
	}
	if err != nil {
		return volume.Mount{}, fmt.Errorf("set up greeting volume %q: %w", req.Spec.Name, err)
	}
	return volume.Mount{Path: req.Dir, ReadOnly: true}, nil
}

func (greetings) TearDown(_ context.Context, dir string) error { return mounts.RemoveTree(dir) }

// Example calls a plugin as the kubelet does: it finds the plugin of a Pod's volume, sets the volume up, and later tears
// it down by its directory alone, as after a restart.
func Example() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(root)
	registry, err := volume.NewRegistry(greetings{})
	if err != nil {
		panic(err)
	}

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1234"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "hello", VolumeSource: corev1.VolumeSource{
		FlexVolume: &corev1.FlexVolumeSource{Driver: "example.com/greeting"},
	}}}
	spec := volume.Spec{Name: "hello", Volume: &pod.Spec.Volumes[0]}
	plugin, err := registry.Find(spec)
	if err != nil {
		panic(err)
	}
	dir := volume.Dir(root, pod.UID, plugin.Name(), spec.DirName())
	mount, err := plugin.SetUp(ctx, volume.Request{Pod: pod, Spec: spec, Dir: dir})
	if err != nil {
		panic(err)
	}
	content, err := os.ReadFile(filepath.Join(mount.Path, "greeting"))
	fmt.Println(string(content), err)

	plugin, _ = registry.ByDirName(filepath.Base(filepath.Dir(dir)))
	fmt.Println("tear down:", plugin.TearDown(ctx, dir))
	_, err = os.Stat(dir)
	fmt.Println("removed:", os.IsNotExist(err))

	// Output:
	// Hello, web! <nil>
	// tear down: <nil>
	// removed: true
}
