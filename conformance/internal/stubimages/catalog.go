package stubimages

import (
	"fmt"
	"path/filepath"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/berth-dev/berth/conformance/internal/oci"
)

// Busybox is the name of the image with a shell and little else.
func Busybox() string { return imageutils.GetE2EImage(imageutils.BusyBox) }

// searchPath is PATH in every image, as upstream's have it.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// recipe describes one image: a layer over the layers of another recipe.
type recipe struct {
	// name is for the recipes that are on this one, and for errors.
	name string
	ids  []imageutils.ImageID
	// manifests are upstream's files, named below test, that name this image, which has no id.
	manifests []string
	// constants are those of upstream's Go files, named below test, that name this image.
	constants []constant
	// on is the recipe below: "" is an empty image.
	on string
	// programs are Debian's: name in the image to name in the packages.
	programs map[string]string
	// built are programs of build.sh: name in the image to name of the program.
	built map[string]string
	// files are upstream's data: name in the image to name below test/images.
	files map[string]string
	// scripts are files that can be executed.
	scripts map[string]string
	// settings are Debian's, by their names.
	settings []string
	// registry are images that the program agnhost serves as a registry: recipes before this one, with a tag for each.
	registry map[string]string
	// extra adds anything else.
	extra  func(Sources, *oci.Tree) error
	config ocispec.ImageConfig
}

// recipes are all images but the base, each after the one that it is on.
func recipes() []recipe {
	return slices.Concat(toolImages(), serverImages(), csiImages(), devicePluginImages(), cadvisorImages())
}

func ids(list ...imageutils.ImageID) []imageutils.ImageID { return list }

// pauseProgram stands for [Sources.Pause] among the built programs.
const pauseProgram = "pause"

// setIDPrograms have the set-user-ID bit: a spec checks that it has no effect.
var setIDPrograms = []string{"/usr/local/bin/nnp"}

// Images builds all stub images. Some images of upstream's list have none, such as those of CSI drivers.
func (s Sources) Images() ([]oci.Image, error) {
	base, err := s.base()
	if err != nil {
		return nil, fmt.Errorf("build base image: %w", err)
	}
	lowest, err := base.Layer()
	if err != nil {
		return nil, fmt.Errorf("build base image: %w", err)
	}
	layers := map[string][][]byte{"": nil, "base": {lowest}}
	var images []oci.Image
	for _, r := range recipes() {
		layer, err := s.layer(r, layers)
		if err != nil {
			return nil, fmt.Errorf("build image %q: %w", r.name, err)
		}
		names, err := s.names(r)
		if err != nil {
			return nil, fmt.Errorf("build image %q: %w", r.name, err)
		}
		layers[r.name] = append(slices.Clone(layers[r.on]), layer)
		config := r.config
		config.Env = []string{searchPath}
		for _, name := range names {
			// Two names of the same image are one image to containerd, which reports one of them for all of its containers.
			config.Labels = map[string]string{ocispec.AnnotationRefName: name}
			images = append(images, oci.Image{Name: name, Layers: layers[r.name], Config: config})
		}
	}
	return images, nil
}

// find returns the recipe of the name.
func find(name string) recipe {
	all := recipes()
	return all[slices.IndexFunc(all, func(r recipe) bool { return r.name == name })]
}

// layer returns the layer of a recipe; layers are those of the images before it.
func (s Sources) layer(r recipe, layers map[string][][]byte) ([]byte, error) {
	tree := &oci.Tree{}
	for name, tag := range r.registry {
		config := find(name).config
		if err := addToRegistry(tree, name, tag, oci.Image{Name: name + ":" + tag, Layers: layers[name], Config: config}); err != nil {
			return nil, err
		}
	}
	if err := s.addPrograms(tree, r.programs); err != nil {
		return nil, err
	}
	for name, program := range r.built {
		source := filepath.Join(s.Programs, program)
		if program == pauseProgram {
			source = s.Pause
		}
		mode := int64(0o755)
		if slices.Contains(setIDPrograms, name) {
			mode = 0o6755
		}
		if err := tree.Copy(name, mode, source); err != nil {
			return nil, err
		}
	}
	for mode, files := range map[int64]map[string]string{0o644: r.files, 0o755: r.scripts} {
		for name, file := range files {
			if err := tree.Copy(name, mode, filepath.Join(s.Upstream, file)); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range r.settings {
		if err := tree.Copy(name, 0o644, filepath.Join(s.Debian, name)); err != nil {
			return nil, err
		}
	}
	if r.extra != nil {
		if err := r.extra(s, tree); err != nil {
			return nil, err
		}
	}
	return tree.Layer()
}
