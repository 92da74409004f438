package stubimages

import (
	"maps"
	"slices"
	"strings"

	imageutils "k8s.io/kubernetes/test/utils/image"
)

// Missing returns the images of upstream's list without a stub image, without their registries: a spec that uses one
// fails.
func Missing() []string {
	made := make(map[imageutils.ImageID]bool)
	for _, r := range recipes() {
		for _, id := range r.ids {
			made[id] = true
		}
	}
	missing := make(map[string]bool)
	for id, config := range imageutils.GetImageConfigs() {
		// Two of the list are not supposed to exist.
		if made[id] || id == imageutils.InvalidRegistryImage || id == imageutils.AgnhostPrivate {
			continue
		}
		name := config.GetE2EImage()
		missing[name[strings.LastIndex(name, "/")+1:]] = true
	}
	return slices.Sorted(maps.Keys(missing))
}

// Registries are the hosts of all images of upstream's list, longest first.
func Registries() []string {
	hosts := make(map[string]bool)
	for _, config := range imageutils.GetImageConfigs() {
		host, _, _ := strings.Cut(config.GetE2EImage(), "/")
		hosts[host] = true
	}
	return slices.SortedFunc(maps.Keys(hosts), func(a, b string) int { return len(b) - len(a) })
}
