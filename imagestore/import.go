package imagestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
)

// leaseDuration is the time after which containerd may collect the content of an import that was killed.
const leaseDuration = time.Hour

// ImportOptions says how to import; the zero value takes all images under the names that the archive gives.
type ImportOptions struct {
	// Name, if set, is the image's name in place of the archive's, which then must hold one image.
	Name string
	// MaxBytes is the most that the archive may have decompressed, and each image unpacked; 0: DefaultMaxBytes.
	MaxBytes int64

	own bool // the images are the cluster's own
}

func (o ImportOptions) maxBytes() int64 {
	if o.MaxBytes > 0 {
		return o.MaxBytes
	}
	return DefaultMaxBytes
}

// Import reads one archive to its end and adds its images, or none of them: an OCI layout in a tar or a docker
// archive ("docker save"), plain, gzip or zstd. An image of the same name is replaced. Only the content for this
// machine's platform is kept. r is not closed. Errors: [ErrNotArchive], [ErrIncomplete], [ErrNoManifest],
// [ErrPlatform], [ErrNoName], [ErrTooLarge], [ErrUnsafeName], [ErrReserved], or what containerd says.
func (s *Store) Import(ctx context.Context, r io.Reader, options ImportOptions) (imported []Image, err error) {
	ctx, lease, release, err := s.lease(ctx)
	if err != nil {
		return nil, fmt.Errorf("import image: %w", err)
	}
	defer func() { err = errors.Join(err, release()) }()

	found, err := readArchive(ctx, prefixedStore{s.client.ContentStore(), lease}, r, options)
	if err != nil {
		return nil, fmt.Errorf("import image: %w", err)
	}
	for _, image := range found {
		if err := s.prepare(ctx, image); err != nil {
			return nil, fmt.Errorf("import image %q: %w", image.name, err)
		}
	}
	var undo []func() error
	for _, image := range found {
		undoPublish, err := s.publish(ctx, image)
		if err != nil {
			err = fmt.Errorf("import image %q: %w", image.name, err)
			for _, undoPublish := range undo {
				err = errors.Join(err, undoPublish())
			}
			return nil, err
		}
		undo = append(undo, undoPublish)
	}
	for _, image := range found {
		described, err := s.describe(ctx, images.Image{Name: image.name, Target: image.target})
		if err != nil {
			return nil, err
		}
		imported = append(imported, described)
	}
	return imported, nil
}

// Ensure imports those images that the store does not hold yet with exactly this content.
func (s *Store) Ensure(ctx context.Context, wanted ...Built) error {
	var missing []Built
	for _, image := range wanted {
		digest, err := image.Image.Digest()
		if err != nil {
			return fmt.Errorf("digest image %q: %w", image.Name, err)
		}
		exists, err := s.has(ctx, image.Name, digest.String())
		if err != nil {
			return fmt.Errorf("look for image %q: %w", image.Name, err)
		}
		if !exists {
			missing = append(missing, image)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var archive bytes.Buffer
	if err := WriteTar(&archive, missing...); err != nil {
		return err
	}
	_, err := s.Import(ctx, &archive, ImportOptions{own: true})
	return err
}

// lease keeps what is written under the returned context from being collected until it is released, which also
// removes what by then belongs to no image.
func (s *Store) lease(ctx context.Context) (context.Context, string, func() error, error) {
	service := s.client.LeasesService()
	lease, err := service.Create(ctx, leases.WithRandomID(), leases.WithExpiration(leaseDuration))
	if err != nil {
		return nil, "", nil, fmt.Errorf("create lease: %w", err)
	}
	release := func() error {
		// The caller may have given up, and that is when there is most to clean up.
		err := service.Delete(context.WithoutCancel(ctx), lease, leases.SynchronousDelete)
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete lease %q: %w", lease.ID, err)
		}
		return nil
	}
	return leases.WithLease(ctx, lease.ID), lease.ID, release, nil
}

// prefixedStore gives the unfinished blobs of one import names that no other import uses: containerd would resume an
// unfinished blob of the same name, and different archives have different files "index.json".
type prefixedStore struct {
	content.Store
	prefix string
}

// Writer implements content.Store.
func (o prefixedStore) Writer(ctx context.Context, options ...content.WriterOpt) (content.Writer, error) {
	own := func(w *content.WriterOpts) error {
		w.Ref = o.prefix + "/" + w.Ref
		return nil
	}
	return o.Store.Writer(ctx, append(slices.Clone(options), own)...)
}

var _ content.Store = prefixedStore{}

// prepare labels the image's content for garbage collection and unpacks its layers: every step that can fail before the
// image gets its name.
func (s *Store) prepare(ctx context.Context, image namedImage) error {
	store, host := s.client.ContentStore(), platforms.Default()
	children := images.FilterPlatforms(images.ChildrenHandler(store), host)
	children = images.LimitManifests(children, host, 1)
	labelled := images.SetChildrenMappedLabels(store, children, images.ChildGCLabels)
	if err := images.Walk(ctx, labelled, image.target); err != nil {
		return fmt.Errorf("label its content: %w", err)
	}
	unpacked := containerd.NewImage(s.client, images.Image{Name: image.name, Target: image.target})
	if err := unpacked.Unpack(ctx, s.snapshotter); err != nil {
		return fmt.Errorf("unpack it with snapshotter %s: %w", s.snapshotter, err)
	}
	return nil
}

// publish names the image, and returns a function that undoes it.
func (s *Store) publish(ctx context.Context, image namedImage) (func() error, error) {
	service := s.client.ImageService()
	// Annotations name the image within its archive; here the name is the key.
	target := image.target
	target.Annotations = nil
	record := images.Image{Name: image.name, Target: target, Labels: map[string]string{
		// This is how CRI marks the images that it shows; it would add the label itself a moment later.
		"io.cri-containerd.image": "managed",
	}}
	for {
		before, err := service.Get(ctx, image.name)
		if errdefs.IsNotFound(err) {
			_, err = service.Create(ctx, record)
			if errdefs.IsAlreadyExists(err) {
				continue // A concurrent import was first.
			}
			return func() error { return service.Delete(context.WithoutCancel(ctx), image.name) }, err
		}
		if err != nil {
			return nil, err
		}
		_, err = service.Update(ctx, record, "target", "labels")
		if errdefs.IsNotFound(err) {
			continue // It was removed meanwhile.
		}
		return func() error {
			_, err := service.Update(context.WithoutCancel(ctx), before, "target", "labels")
			return err
		}, err
	}
}
