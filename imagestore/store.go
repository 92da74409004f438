package imagestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// namespace is the one in which containerd's CRI keeps the images of Pods.
const namespace = "k8s.io"

// ErrNotFound is returned, wrapped, for an image that the store does not have.
var ErrNotFound = errors.New("image not found")

// ErrInUse is returned, wrapped, for an image that a container was made from and still needs its name.
var ErrInUse = errors.New("image is in use")

// Image is one image that Pods can name.
type Image struct {
	// Name is the full name, with tag or digest.
	Name string `json:"name"`
	// Digest is the digest of its manifest or index.
	Digest string `json:"digest"`
	// Size is what its content takes for this machine's platform, in bytes as stored (packed).
	Size int64 `json:"size"`
	// Platforms are those that the image says it is for, "linux/amd64" each; the content of this machine's is here.
	Platforms []string `json:"platforms,omitempty"`
}

// Store is the images of one containerd. It is safe for concurrent use.
type Store struct {
	client      *containerd.Client
	snapshotter string
}

// Open connects to the containerd that listens on the unix socket, and checks that it responds. The caller closes the
// store.
func Open(ctx context.Context, socket string) (*Store, error) {
	// The client would wait for a missing socket; fail instead, because containerd is not running.
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err == nil {
		err = conn.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("connect to containerd: %w", err)
	}
	client, err := containerd.New(socket, containerd.WithDefaultNamespace(namespace))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %q: %w", socket, err)
	}
	snapshotter, err := findSnapshotter(ctx, client)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the plugins of containerd at %q: %w", socket, err), client.Close())
	}
	return &Store{client: client, snapshotter: snapshotter}, nil
}

// Close ends the connection.
func (s *Store) Close() error { return s.client.Close() }

// findSnapshotter is where containerd unpacks images to: overlayfs where the machine has it.
func findSnapshotter(ctx context.Context, client *containerd.Client) (string, error) {
	answer, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
	if err != nil {
		return "", err
	}
	best := ""
	for _, plugin := range answer.Plugins {
		if plugin.InitErr == nil && (plugin.ID == "overlayfs" || plugin.ID == "native" && best == "") {
			best = plugin.ID
		}
	}
	if best == "" {
		return "", errors.New("it has neither the overlayfs nor the native snapshotter")
	}
	return best, nil
}

// List returns the images by name. Names that containerd's CRI keeps for its own use, which are only digests, are
// left out.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	all, err := s.client.ImageService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var list []Image
	for _, image := range all {
		if isInternal(image.Name) {
			continue
		}
		described, err := s.describe(ctx, image)
		if err != nil {
			return nil, err
		}
		list = append(list, described)
	}
	slices.SortFunc(list, func(a, b Image) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// isInternal reports whether CRI has added the name, "sha256:…".
func isInternal(name string) bool { return strings.HasPrefix(name, "sha256:") }

func (s *Store) describe(ctx context.Context, image images.Image) (Image, error) {
	described := Image{Name: image.Name, Digest: image.Target.Digest.String()}
	store := s.client.ContentStore()
	found, err := images.Platforms(ctx, store, image.Target)
	if err != nil && !errdefs.IsNotFound(err) {
		return Image{}, fmt.Errorf("read platforms of image %q: %w", image.Name, err)
	}
	for _, platform := range found {
		if platform.OS != "unknown" { // An index also holds attestations, as manifests for no platform.
			described.Platforms = append(described.Platforms, platforms.Format(platform))
		}
	}
	// An image pulled for another platform is listed with no size rather than hidden.
	size, err := image.Size(ctx, store, platforms.Default())
	if err != nil && !errdefs.IsNotFound(err) {
		return Image{}, fmt.Errorf("read size of image %q: %w", image.Name, err)
	}
	described.Size = size
	return described, nil
}

// Remove deletes the image's name, and with its last name its content, before it returns. It refuses, with
// [ErrInUse], while a container of that image exists.
func (s *Store) Remove(ctx context.Context, name string) error {
	full, err := fullName(name)
	if err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	service := s.client.ImageService()
	image, err := service.Get(ctx, full)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("remove image %q: %w", full, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("remove image %q: %w", full, err)
	}
	all, err := service.List(ctx)
	if err != nil {
		return fmt.Errorf("remove image %q: list images: %w", full, err)
	}
	doomed := namesToRemove(all, full, image.Target)
	if err := s.refuseIfUsed(ctx, full, doomed); err != nil {
		return err
	}
	for i, name := range doomed {
		var options []images.DeleteOpt
		if i == len(doomed)-1 {
			options = append(options, images.SynchronousDelete())
		}
		if err := service.Delete(ctx, name, options...); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %q: %w", name, err)
		}
	}
	return nil
}

// namesToRemove is what goes with name: itself, and with the last name that people gave the names that only CRI uses.
func namesToRemove(all []images.Image, name string, target ocispec.Descriptor) []string {
	var internal []string
	for _, image := range all {
		switch {
		case image.Name == name || image.Target.Digest != target.Digest:
		case isInternal(image.Name):
			internal = append(internal, image.Name)
		default:
			return []string{name}
		}
	}
	return append(internal, name)
}

func (s *Store) refuseIfUsed(ctx context.Context, name string, doomed []string) error {
	containers, err := s.client.ContainerService().List(ctx)
	if err != nil {
		return fmt.Errorf("remove image %q: list containers: %w", name, err)
	}
	var users []string
	for _, container := range containers {
		if slices.Contains(doomed, container.Image) {
			users = append(users, container.ID)
		}
	}
	if len(users) > 0 {
		return fmt.Errorf("remove image %q: %w by %d containers, the first is %s", name, ErrInUse, len(users), users[0])
	}
	return nil
}

// has reports whether the store holds exactly this content under this name, complete and unpacked.
func (s *Store) has(ctx context.Context, name, digest string) (bool, error) {
	image, err := s.client.ImageService().Get(ctx, name)
	if errdefs.IsNotFound(err) || err == nil && image.Target.Digest.String() != digest {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, _, _, missing, err := images.Check(ctx, s.client.ContentStore(), image.Target, platforms.Default())
	if len(missing) > 0 || errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return containerd.NewImage(s.client, image).IsUnpacked(ctx, s.snapshotter)
}
