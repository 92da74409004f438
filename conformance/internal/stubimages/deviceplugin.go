package stubimages

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	appsv1 "k8s.io/api/apps/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"
	"sigs.k8s.io/yaml"
)

// devicePluginImages are the images of upstream's sample of a device plugin. They are named by its manifests alone.
func devicePluginImages() []recipe {
	const manifests = "e2e/testing-manifests/sample-device-plugin/"
	return []recipe{{
		name: "sample-device-plugin", on: "base", built: map[string]string{"/sampledeviceplugin": "sampledeviceplugin"},
		manifests: []string{manifests + "sample-device-plugin.yaml", manifests + "sample-device-plugin-control-registration.yaml"},
		config:    ocispec.ImageConfig{Entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"}},
	}}
}

// names returns the names of a recipe's images.
func (s Sources) names(r recipe) ([]string, error) {
	var names []string
	for _, id := range r.ids {
		names = append(names, imageutils.GetE2EImage(id))
	}
	for _, manifest := range r.manifests {
		image, err := daemonSetImage(filepath.Join(s.Upstream, "..", manifest))
		if err != nil {
			return nil, err
		}
		names = append(names, image)
	}
	for _, c := range r.constants {
		image, err := stringConstant(filepath.Join(s.Upstream, "..", c.file), c.name)
		if err != nil {
			return nil, err
		}
		names = append(names, image)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// daemonSetImage returns the image of the one container of a DaemonSet's manifest.
func daemonSetImage(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read which image a manifest names: %w", err)
	}
	var set appsv1.DaemonSet
	if err := yaml.Unmarshal(data, &set); err != nil {
		return "", fmt.Errorf("read which image manifest %s names: %w", file, err)
	}
	containers := set.Spec.Template.Spec.Containers
	if len(containers) != 1 {
		return "", fmt.Errorf("read which image manifest %s names: it has %d containers, want 1", file, len(containers))
	}
	return containers[0].Image, nil
}
