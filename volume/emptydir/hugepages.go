package emptydir

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/quantity"
	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/volume"
)

// SupportsMedium reports whether the plugin has volumes of this medium.
func SupportsMedium(medium corev1.StorageMedium) bool {
	return medium == corev1.StorageMediumDefault || medium == corev1.StorageMediumMemory || isHugePages(medium)
}

// isHugePages reports whether the medium is huge pages: of the one size that the Pod requests, or of a size that the
// medium names, as "HugePages-2Mi" does.
func isHugePages(medium corev1.StorageMedium) bool {
	return medium == corev1.StorageMediumHugePages ||
		strings.HasPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
}

// setUpHugePages mounts a hugetlbfs of the requested page size.
func (p *Plugin) setUpHugePages(req volume.Request, medium corev1.StorageMedium) error {
	size, err := pageSize(req.Pod, medium)
	if err != nil {
		return err
	}
	if err := os.Mkdir(req.Dir, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	mounted, err := p.deps.Mounter.IsMountPoint(req.Dir)
	if err != nil || mounted {
		return err
	}
	options := []string{"pagesize=" + strconv.FormatInt(size.Value(), 10), "mode=0777"}
	if req.FSGroup != nil {
		options = []string{options[0], "mode=2777", "gid=" + strconv.FormatInt(*req.FSGroup, 10)}
	}
	if err := p.deps.Mounter.Mount("nodev", req.Dir, "hugetlbfs", options); err != nil {
		return fmt.Errorf("mount huge pages of %s (does the kernel have pages of this size?): %w", size.String(), err)
	}
	return nil
}

// pageSize returns the size of the pages. The Pod must request pages of this size, because its cgroup allows no others.
func pageSize(pod *corev1.Pod, medium corev1.StorageMedium) (resource.Quantity, error) {
	requested := requestedPageSizes(pod)
	if medium == corev1.StorageMediumHugePages {
		if len(requested) != 1 {
			return resource.Quantity{}, fmt.Errorf("medium %q needs a Pod that requests huge pages of exactly one size, "+
				"this one requests %d: name the size in the medium", medium, len(requested))
		}
		return requested[0], nil
	}
	text := strings.TrimPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
	size, err := quantity.Parse(text)
	if err != nil || size.Sign() <= 0 {
		return size, fmt.Errorf("medium %q: %q is not a page size", medium, text)
	}
	if !slices.ContainsFunc(requested, func(one resource.Quantity) bool { return one.Cmp(size) == 0 }) {
		return size, fmt.Errorf("medium %q: no container of the Pod requests hugepages-%s", medium, text)
	}
	return size, nil
}

// requestedPageSizes lists the sizes of the huge pages that the Pod's containers request.
func requestedPageSizes(pod *corev1.Pod) []resource.Quantity {
	var sizes []resource.Quantity
	add := func(list corev1.ResourceList) {
		for name := range list {
			text, ok := resourcename.HugePageSize(name)
			size, err := quantity.Parse(text)
			if !ok || err != nil || slices.ContainsFunc(sizes, func(one resource.Quantity) bool { return one.Cmp(size) == 0 }) {
				continue
			}
			sizes = append(sizes, size)
		}
	}
	if pod.Spec.Resources != nil {
		add(pod.Spec.Resources.Requests)
		add(pod.Spec.Resources.Limits)
	}
	for container := range podutil.Containers(&pod.Spec) {
		add(container.Resources.Requests)
		add(container.Resources.Limits)
	}
	return sizes
}
