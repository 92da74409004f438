package stubimages_test

import (
	"slices"
	"strings"
	"testing"

	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/berth-dev/berth/conformance/internal/stubimages"
)

func TestMissingNamesImagesWithoutStub(t *testing.T) {
	missing := stubimages.Missing()
	has := func(name string) bool {
		return slices.ContainsFunc(missing, func(m string) bool { return strings.HasPrefix(m, name+":") })
	}
	if has("agnhost") || has("nfs") || has("iscsi") || has("nonewprivs") || has("pause") || has("csi-attacher") || has("hostpathplugin") {
		t.Errorf("an image with a stub is listed as missing: %v", missing)
	}
	if !has("apparmor-loader") {
		t.Errorf("an image without a stub is not listed as missing: %v", missing)
	}
}

func TestRegistriesCoverTheListOfImages(t *testing.T) {
	host, _, _ := strings.Cut(imageutils.GetE2EImage(imageutils.Agnhost), "/")
	if got := stubimages.Registries(); !slices.Contains(got, host) {
		t.Errorf("%v lacks %s", got, host)
	}
}
