package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
)

// ErrNothing is returned, wrapped, by an export of all images from a store that has none.
var ErrNothing = errors.New("there are no images")

// Export writes images to an archive that Import, `docker load` and other tools read: an OCI layout with a docker manifest. It has
// their content for this machine's platform. Without names these are all images but the cluster's own. It returns the names of the
// images in the archive, and fails, before anything is written, if an image does not exist or is not complete.
func (s *Store) Export(ctx context.Context, w io.Writer, names ...string) ([]string, error) {
	found, err := s.exported(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("export images: %w", err)
	}
	ctx, _, release, err := s.lease(ctx) // an image that is removed meanwhile keeps its content
	if err != nil {
		return nil, fmt.Errorf("export images: %w", err)
	}
	host := platforms.Default()
	for _, image := range found {
		_, _, _, missing, err := images.Check(ctx, s.client.ContentStore(), image.Target, host)
		if err == nil && len(missing) > 0 {
			err = fmt.Errorf("%w: it lacks blob %s", ErrIncomplete, missing[0].Digest)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("export image %q: %w", image.Name, err), release())
		}
	}
	err = s.client.Export(ctx, w, archive.WithImages(found), archive.WithPlatform(host))
	if err != nil {
		err = fmt.Errorf("export images: %w", err)
	}
	var exported []string
	for _, image := range found {
		exported = append(exported, image.Name)
	}
	return exported, errors.Join(err, release())
}

// exported returns the images of these names, or all but the cluster's own and names with digests only.
func (s *Store) exported(ctx context.Context, names []string) ([]images.Image, error) {
	service := s.client.ImageService()
	if len(names) == 0 {
		listed, err := s.List(ctx)
		if err != nil {
			return nil, err
		}
		for _, image := range listed {
			if !isOwn(image.Name) {
				names = append(names, image.Name)
			}
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("%w beside the cluster's own", ErrNothing)
		}
	}
	var found []images.Image
	for _, name := range names {
		full, err := fullName(name)
		if err != nil {
			return nil, err
		}
		image, err := service.Get(ctx, full)
		if errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("%q: %w", full, ErrNotFound)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", full, err)
		}
		if !slices.ContainsFunc(found, func(other images.Image) bool { return other.Name == image.Name }) {
			found = append(found, image)
		}
	}
	return found, nil
}
