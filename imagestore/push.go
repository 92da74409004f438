package imagestore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/utils/clock"
)

const (
	// pushLease is the time after which containerd may collect what was pushed for no image, if this process was killed.
	pushLease = 24 * time.Hour
	// leaseAge is the age from which a lease gets no more content, so that nothing of a push under way expires.
	leaseAge = time.Hour
)

// pushed is the registry that pushes go to: it writes into the content store and names complete images. It is safe for concurrent
// use. What it does not have, such as deletions, it refuses as unsupported.
type pushed struct {
	*ociregistry.Funcs // nil: the methods that are not below
	store              *Store
	options            PushOptions

	mu     sync.Mutex // guards all below
	leases []leases.Lease
	made   time.Time // of the last of leases
	// writing are the uploads under way, by their IDs.
	writing map[string]bool
}

var _ ociregistry.Interface = (*pushed)(nil)

// PushOptions say what pushes may do.
type PushOptions struct {
	// MaxBytes is the most that a blob may have, and an image unpacked; 0: DefaultMaxBytes.
	MaxBytes int64
	// Pushed is called with the name of each image that Pods can use from now on. It may be nil.
	Pushed func(name string)
	// Dropped is called with the name of what was pushed with an image and is none, such as a signature: it is not kept. It may be nil.
	Dropped func(name string)
	// Clock is the time of leases; nil: the real one.
	Clock clock.PassiveClock
}

// hostKey is the key of the registry's name in a request's context, which is a part of the images' names.
type hostKey struct{}

// firstBytesKey is the key of whether a request's data are the first of an upload.
type firstBytesKey struct{}

// hold returns a context under which content is kept from being collected until close.
func (p *pushed) hold(ctx context.Context) (context.Context, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.options.Clock.Now(); len(p.leases) == 0 || now.Sub(p.made) >= leaseAge {
		lease, err := p.store.client.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithExpiration(pushLease))
		if err != nil {
			return nil, fmt.Errorf("create lease: %w", err)
		}
		p.leases, p.made = append(p.leases, lease), now
	}
	return leases.WithLease(ctx, p.leases[len(p.leases)-1].ID), nil
}

// keep keeps content that exists from being collected until close.
func (p *pushed) keep(ctx context.Context, dgst digest.Digest) error {
	if _, err := p.hold(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	lease := p.leases[len(p.leases)-1]
	p.mu.Unlock()
	err := p.store.client.LeasesService().AddResource(ctx, lease, leases.Resource{ID: dgst.String(), Type: "content"})
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("hold blob %s: %w", dgst, err)
	}
	return nil
}

// close releases what belongs to no image: blobs, and uploads under way.
func (p *pushed) close(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, lease := range p.leases {
		err := p.store.client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete)
		if err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete lease %s: %w", lease.ID, err))
		}
	}
	return errors.Join(errs...)
}

// PushManifest implements ociregistry.Writer. A manifest with a tag, or of an image for this machine, must be complete: Pods can use it
// when the method returns. What belongs to an image and is none goes when the registry ends.
func (p *pushed) PushManifest(ctx context.Context, repo, tag string, contents []byte, mediaType string) (ociregistry.Descriptor, error) {
	target := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(contents), Size: int64(len(contents))}
	if !images.IsManifestType(mediaType) && !images.IsIndexType(mediaType) {
		return target, fmt.Errorf("%w: %q is no image's type; only images that Pods can use may be pushed", ociregistry.ErrManifestInvalid, mediaType)
	}
	var index ocispec.Index
	if err := json.Unmarshal(contents, &index); err != nil {
		return target, fmt.Errorf("%w: %w", ociregistry.ErrManifestInvalid, err)
	}
	held, err := p.hold(ctx)
	if err != nil {
		return target, err
	}
	store := p.store.client.ContentStore()
	if err := content.WriteBlob(held, store, "push-manifest-"+rand.Text(), strings.NewReader(string(contents)), target); err != nil {
		return target, fmt.Errorf("write manifest %s: %w", target.Digest, err)
	}
	if err := p.keep(ctx, target.Digest); err != nil { // it may have existed
		return target, err
	}
	names, err := p.names(ctx, repo, tag, target.Digest)
	if err != nil {
		return target, err
	}
	if isAttachment(tag, mediaType, contents) {
		if p.options.Dropped != nil {
			p.options.Dropped(names[0])
		}
		return target, nil
	}
	image := namedImage{name: names[0], target: target}
	if err := p.check(held, &image); err != nil {
		if tag == "" && (errors.Is(err, ErrPlatform) || errors.Is(err, ErrIncomplete)) {
			return target, nil // a part of an index that follows
		}
		return target, fmt.Errorf("%w: image %q: %w", ociregistry.ErrManifestInvalid, image.name, err)
	}
	if err := p.name(held, image, names, index); err != nil {
		return target, fmt.Errorf("image %q: %w", image.name, err)
	}
	return target, nil
}

// names are the names of an image, as the container runtime has them after a pull: with the tag, if any, and with the digest.
func (p *pushed) names(ctx context.Context, repo, tag string, dgst digest.Digest) ([]string, error) {
	base := repo
	if host, _, several := strings.Cut(repo, "/"); !several || !strings.Contains(host, ".") {
		registry, _ := ctx.Value(hostKey{}).(string)
		base = registry + "/" + repo
	}
	names := []string{base + "@" + dgst.String()}
	if tag != "" {
		names = append([]string{base + ":" + tag}, names...)
	}
	for i := range names {
		full, err := fullName(names[i])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ociregistry.ErrNameInvalid, err)
		}
		if strings.HasPrefix(full, ownPrefix) {
			return nil, fmt.Errorf("%w: %q: %w", ociregistry.ErrDenied, full, ErrReserved)
		}
		names[i] = full
	}
	return names, nil
}

// check makes sure that the image can run here.
func (p *pushed) check(ctx context.Context, image *namedImage) error {
	store := p.store.client.ContentStore()
	if err := checkImage(ctx, store, image); err != nil {
		return err
	}
	return checkLayers(ctx, store, image, p.options.MaxBytes)
}

// name unpacks the image and gives it its names. The parts of an index, which were pushed before it, lose theirs.
func (p *pushed) name(ctx context.Context, image namedImage, names []string, index ocispec.Index) error {
	if err := p.store.prepare(ctx, image); err != nil {
		return err
	}
	for _, name := range names {
		if _, err := p.store.publish(ctx, namedImage{name: name, target: image.target}); err != nil {
			return err
		}
	}
	repository, _, _ := strings.Cut(names[len(names)-1], "@")
	for _, part := range index.Manifests {
		err := p.store.client.ImageService().Delete(ctx, repository+"@"+part.Digest.String())
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove the name of its part %s: %w", part.Digest, err)
		}
	}
	if p.options.Pushed != nil {
		p.options.Pushed(names[0])
	}
	return nil
}
