package projected

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// makeMountPoints creates the directories on which containers mount other volumes inside of this one, which containers cannot write to: the
// container runtime could not create them.
func makeMountPoints(dir, volume string, pod *corev1.Pod) error {
	for container := range podutil.Containers(&pod.Spec) {
		for _, inner := range mountPointsInside(volume, container.VolumeMounts) {
			if err := os.MkdirAll(filepath.Join(dir, inner), 0o755); err != nil {
				return fmt.Errorf("create directory %q, on which container %q mounts another volume: %w", inner, container.Name, err)
			}
		}
	}
	return nil
}

// mountPointsInside returns where a container mounts other volumes inside of this one, relative to its root. What is mounted inside of those
// again is left out.
func mountPointsInside(volume string, volumeMounts []corev1.VolumeMount) []string {
	var inside []string
	for _, outer := range volumeMounts {
		if outer.Name != volume || outer.SubPath != "" || outer.SubPathExpr != "" {
			continue
		}
		var found []string
		for _, inner := range volumeMounts {
			if relative, ok := pathInside(outer.MountPath, inner.MountPath); ok {
				found = append(found, relative)
			}
		}
		slices.Sort(found) // a directory before what is in it
		for _, path := range found {
			covered := slices.ContainsFunc(inside, func(done string) bool { return strings.HasPrefix(path, done+"/") })
			if !covered {
				inside = append(inside, path)
			}
		}
	}
	return inside
}

// pathInside returns the path relative to the directory, if it is inside. Both are paths of a container, which begin at its root.
func pathInside(dir, path string) (relative string, ok bool) {
	dir, path = filepath.Join("/", dir), filepath.Join("/", path)
	return strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
