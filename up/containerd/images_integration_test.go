//go:build integration

package containerd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/imagestore"
)

// holdings counts what containerd keeps: blobs, unfinished blobs, snapshots and leases.
func (n *fixture) holdings(t testing.TB) map[string]int {
	c, err := client.New(n.Socket(), client.WithDefaultNamespace("k8s.io"))
	require.NoError(t, err)
	defer c.Close()
	held := map[string]int{}
	require.NoError(t, c.ContentStore().Walk(t.Context(), func(content.Info) error { held["blobs"]++; return nil }))
	unfinished, err := c.ContentStore().ListStatuses(t.Context())
	require.NoError(t, err)
	held["unfinished"] = len(unfinished)
	require.NoError(t, c.SnapshotService("overlayfs").Walk(t.Context(), func(context.Context, snapshots.Info) error {
		held["snapshots"]++
		return nil
	}))
	leases, err := c.LeasesService().List(t.Context())
	require.NoError(t, err)
	held["leases"] = len(leases)
	return held
}

func archiveOf(t testing.TB, name string, size int) []byte {
	image, err := imagestore.Build(imagestore.BuildSpec{
		Name: name, Binary: bytes.Repeat([]byte(name), size/len(name)+1), Path: "/x",
	})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, imagestore.WriteTar(&out, image))
	return out.Bytes()
}

// TestImages imports good and bad archives into a real containerd, and removes what came in.
func TestImages(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	store, err := imagestore.Open(t.Context(), n.Socket())
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	nothing := n.holdings(t)
	good := archiveOf(t, "example.org/good:v1", 1<<20)

	_, err = store.Import(t.Context(), bytes.NewReader(good[:len(good)/2]), imagestore.ImportOptions{})
	require.ErrorIs(t, err, imagestore.ErrIncomplete)
	// The caller gives up in the middle.
	ctx, cancel := context.WithCancel(t.Context())
	cut := io.MultiReader(bytes.NewReader(good[:len(good)/2]), cancelling(cancel), bytes.NewReader(good[len(good)/2:]))
	_, err = store.Import(ctx, cut, imagestore.ImportOptions{})
	require.Error(t, err)
	list, err := store.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	require.Equal(t, nothing, n.holdings(t), "a failed import leaves nothing")

	imported, err := store.Import(t.Context(), bytes.NewReader(good), imagestore.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, "example.org/good:v1", imported[0].Name)
	again, err := store.Import(t.Context(), bytes.NewReader(good), imagestore.ImportOptions{Name: "alias:v2"})
	require.NoError(t, err)
	require.Equal(t, imported[0].Digest, again[0].Digest)
	list, err = store.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []imagestore.Image{again[0], imported[0]}, list)

	require.ErrorIs(t, store.Remove(t.Context(), "example.org/absent"), imagestore.ErrNotFound)
	require.NoError(t, store.Remove(t.Context(), "example.org/good:v1"))
	require.NoError(t, store.Remove(t.Context(), "alias:v2"))
	list, err = store.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	require.Equal(t, nothing, n.holdings(t), "the last name takes the content with it")

	// Several at once, two of them the same.
	var imports sync.WaitGroup
	failed := make(chan error, 4)
	for _, name := range []string{"a/one:v1", "a/one:v1", "a/two:v1", "a/three:v1"} {
		archive := archiveOf(t, name, 3<<20)
		imports.Go(func() {
			_, err := store.Import(t.Context(), bytes.NewReader(archive), imagestore.ImportOptions{})
			failed <- err
		})
	}
	imports.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	list, err = store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 3)

	n.importImages(t)
	p := n.run(t, n.sandbox("user", t.TempDir(), true), volume(t))
	require.ErrorIs(t, store.Remove(t.Context(), imagestore.DemoName(imageVersion)), imagestore.ErrInUse)
	n.end(t, p)
	require.NoError(t, store.Remove(t.Context(), imagestore.DemoName(imageVersion)))
	n.stop(t)
	n.clean(t)
}

// cancelling is a reader without content that cancels when it is reached.
type cancelling context.CancelFunc

func (c cancelling) Read([]byte) (int, error) {
	c()
	return 0, io.EOF
}

// TestOpenWithoutContainerd fails with the socket's name.
func TestOpenWithoutContainerd(t *testing.T) {
	_, err := imagestore.Open(t.Context(), "/run/absent.sock")
	require.ErrorContains(t, err, "/run/absent.sock")
	require.False(t, errors.Is(err, imagestore.ErrNotFound))
}
