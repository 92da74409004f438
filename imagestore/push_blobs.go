package imagestore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// uploadRef is the content store's name of an upload.
func uploadRef(id string) string { return "berth-push-" + id }

// anyChunk is the size of chunks that is proposed to clients.
const anyChunk = 1 << 20

// PushBlob implements ociregistry.Writer.
func (p *pushed) PushBlob(ctx context.Context, repo string, desc ociregistry.Descriptor, r io.Reader) (ociregistry.Descriptor, error) {
	writer, err := p.PushBlobChunked(ctx, repo, 0)
	if err != nil {
		return desc, err
	}
	_, err = io.Copy(writer, r)
	if err == nil {
		desc, err = writer.Commit(desc.Digest)
	}
	if err != nil {
		return desc, errors.Join(err, writer.Cancel())
	}
	return desc, writer.Close()
}

// PushBlobChunked implements ociregistry.Writer.
func (p *pushed) PushBlobChunked(ctx context.Context, _ string, _ int) (ociregistry.BlobWriter, error) {
	id := rand.Text()
	p.mu.Lock()
	p.writing[id] = true
	p.mu.Unlock()
	return p.open(ctx, id, -1)
}

// PushBlobChunkedResume implements ociregistry.Writer. Clients that complete an upload do not give an offset: 0 then stands for any, unless
// the request says that it has the first bytes.
func (p *pushed) PushBlobChunkedResume(ctx context.Context, _, id string, offset int64, _ int) (ociregistry.BlobWriter, error) {
	p.mu.Lock()
	known := p.writing[id]
	p.mu.Unlock()
	if !known {
		return nil, ociregistry.ErrBlobUploadUnknown
	}
	return p.open(ctx, id, offset)
}

func (p *pushed) open(ctx context.Context, id string, offset int64) (ociregistry.BlobWriter, error) {
	ctx, err := p.hold(ctx)
	if err != nil {
		return nil, err
	}
	writer, err := content.OpenWriter(ctx, p.store.client.ContentStore(), content.WithRef(uploadRef(id)))
	if err != nil {
		return nil, fmt.Errorf("open upload %s: %w", id, err)
	}
	status, err := writer.Status()
	first, _ := ctx.Value(firstBytesKey{}).(bool)
	if err == nil && (offset > 0 || first) && status.Offset != max(offset, 0) {
		err = fmt.Errorf("%w: the upload has %d bytes so far", ociregistry.ErrRangeInvalid, status.Offset)
	}
	if err != nil {
		return nil, errors.Join(err, writer.Close())
	}
	return &upload{pushed: p, ctx: ctx, id: id, writer: writer, size: status.Offset}, nil
}

// upload writes one blob. It belongs to one request; the next one opens it anew.
type upload struct {
	pushed *pushed
	ctx    context.Context //nolint:containedctx // of the request that it belongs to
	id     string
	writer content.Writer
	size   int64
	ended  bool
}

// Write implements io.Writer.
func (u *upload) Write(data []byte) (int, error) {
	if u.size+int64(len(data)) > u.pushed.options.MaxBytes {
		return 0, fmt.Errorf("%w: %w: the blob has more than %d bytes", ociregistry.ErrSizeInvalid, ErrTooLarge, u.pushed.options.MaxBytes)
	}
	n, err := u.writer.Write(data)
	u.size += int64(n)
	return n, err
}

// Close implements io.Closer.
func (u *upload) Close() error { return u.writer.Close() }

// Size implements ociregistry.BlobWriter.
func (u *upload) Size() int64 { return u.size }

// ChunkSize implements ociregistry.BlobWriter.
func (u *upload) ChunkSize() int { return anyChunk }

// ID implements ociregistry.BlobWriter.
func (u *upload) ID() string { return u.id }

// Commit implements ociregistry.BlobWriter.
func (u *upload) Commit(dgst digest.Digest) (ociregistry.Descriptor, error) {
	desc := ociregistry.Descriptor{MediaType: "application/octet-stream", Digest: dgst, Size: u.size}
	if err := dgst.Validate(); err != nil {
		return desc, fmt.Errorf("%w: %w", ociregistry.ErrDigestInvalid, err)
	}
	err := u.writer.Commit(u.ctx, 0, dgst)
	switch {
	case errdefs.IsAlreadyExists(err):
	case errdefs.IsFailedPrecondition(err):
		return desc, errors.Join(fmt.Errorf("%w: %w", ociregistry.ErrDigestInvalid, err), u.Cancel())
	case err != nil:
		return desc, fmt.Errorf("write blob %s: %w", dgst, err)
	}
	u.forget()
	return desc, u.pushed.keep(u.ctx, dgst)
}

// Cancel implements ociregistry.BlobWriter.
func (u *upload) Cancel() error {
	if u.ended {
		return nil
	}
	u.forget()
	err := u.writer.Close()
	// It frees the space early; what it leaves, as when the store has not closed the upload yet, goes with the lease.
	_ = u.pushed.store.client.ContentStore().Abort(context.WithoutCancel(u.ctx), uploadRef(u.id))
	return err
}

func (u *upload) forget() {
	u.ended = true
	u.pushed.mu.Lock()
	defer u.pushed.mu.Unlock()
	delete(u.pushed.writing, u.id)
}

// MountBlob implements ociregistry.Writer: all repositories have all blobs.
func (p *pushed) MountBlob(ctx context.Context, _, toRepo string, dgst digest.Digest) (ociregistry.Descriptor, error) {
	return p.ResolveBlob(ctx, toRepo, dgst)
}

// ResolveBlob implements ociregistry.Reader. A client that finds a blob does not push it, so it is kept.
func (p *pushed) ResolveBlob(ctx context.Context, _ string, dgst digest.Digest) (ociregistry.Descriptor, error) {
	desc, err := p.describe(ctx, dgst)
	if errdefs.IsNotFound(err) {
		return desc, ociregistry.ErrBlobUnknown
	}
	return desc, err
}

func (p *pushed) describe(ctx context.Context, dgst digest.Digest) (ociregistry.Descriptor, error) {
	desc := ociregistry.Descriptor{MediaType: "application/octet-stream", Digest: dgst}
	if err := dgst.Validate(); err != nil {
		return desc, fmt.Errorf("%w: %w", ociregistry.ErrDigestInvalid, err)
	}
	info, err := p.store.client.ContentStore().Info(ctx, dgst)
	if err != nil {
		return desc, err
	}
	desc.Size = info.Size
	return desc, p.keep(ctx, dgst)
}

// ResolveManifest implements ociregistry.Reader.
func (p *pushed) ResolveManifest(ctx context.Context, _ string, dgst digest.Digest) (ociregistry.Descriptor, error) {
	desc, err := p.describe(ctx, dgst)
	if errdefs.IsNotFound(err) {
		return desc, ociregistry.ErrManifestUnknown
	}
	if err != nil {
		return desc, err
	}
	if desc.Size > maxManifest {
		return desc, ociregistry.ErrManifestUnknown
	}
	data, err := content.ReadBlob(ctx, p.store.client.ContentStore(), ocispec.Descriptor{Digest: dgst, Size: desc.Size})
	if err != nil {
		return desc, fmt.Errorf("read manifest %s: %w", dgst, err)
	}
	var typed struct {
		MediaType string `json:"mediaType"`
	}
	if err := json.Unmarshal(data, &typed); err != nil {
		return desc, ociregistry.ErrManifestUnknown // another blob
	}
	if desc.MediaType = typed.MediaType; desc.MediaType == "" {
		desc.MediaType = ocispec.MediaTypeImageManifest
	}
	return desc, nil
}

// ResolveTag implements ociregistry.Reader.
func (p *pushed) ResolveTag(ctx context.Context, repo, tag string) (ociregistry.Descriptor, error) {
	names, err := p.names(ctx, repo, tag, digest.FromString(""))
	if err != nil {
		return ociregistry.Descriptor{}, err
	}
	image, err := p.store.client.ImageService().Get(ctx, names[0])
	if errdefs.IsNotFound(err) {
		return ociregistry.Descriptor{}, ociregistry.ErrManifestUnknown
	}
	return image.Target, err
}

// GetBlob implements ociregistry.Reader.
func (p *pushed) GetBlob(ctx context.Context, repo string, dgst digest.Digest) (ociregistry.BlobReader, error) {
	return p.GetBlobRange(ctx, repo, dgst, 0, -1)
}

// GetBlobRange implements ociregistry.Reader.
func (p *pushed) GetBlobRange(ctx context.Context, repo string, dgst digest.Digest, from, to int64) (ociregistry.BlobReader, error) {
	desc, err := p.ResolveBlob(ctx, repo, dgst)
	if err != nil {
		return nil, err
	}
	return p.read(ctx, desc, from, to)
}

// GetManifest implements ociregistry.Reader.
func (p *pushed) GetManifest(ctx context.Context, repo string, dgst digest.Digest) (ociregistry.BlobReader, error) {
	desc, err := p.ResolveManifest(ctx, repo, dgst)
	if err != nil {
		return nil, err
	}
	return p.read(ctx, desc, 0, -1)
}

// GetTag implements ociregistry.Reader.
func (p *pushed) GetTag(ctx context.Context, repo, tag string) (ociregistry.BlobReader, error) {
	desc, err := p.ResolveTag(ctx, repo, tag)
	if err != nil {
		return nil, err
	}
	return p.read(ctx, desc, 0, -1)
}

// read returns a part of a blob: up to its end if to is negative.
func (p *pushed) read(ctx context.Context, desc ociregistry.Descriptor, from, to int64) (ociregistry.BlobReader, error) {
	reader, err := p.store.client.ContentStore().ReaderAt(ctx, desc)
	if errdefs.IsNotFound(err) {
		return nil, ociregistry.ErrBlobUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", desc.Digest, err)
	}
	if to < 0 || to > desc.Size {
		to = desc.Size
	}
	return &blob{io.NewSectionReader(reader, from, max(to-from, 0)), reader, desc}, nil
}

// blob reads a part of a blob.
type blob struct {
	io.Reader
	io.Closer
	desc ociregistry.Descriptor
}

// Descriptor implements ociregistry.BlobReader.
func (b *blob) Descriptor() ociregistry.Descriptor { return b.desc }
