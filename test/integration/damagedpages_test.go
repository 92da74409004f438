//go:build integration

package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStartsOnDamagedPages kills a cluster that has a Pod with volumes, and damages the pages of a database: of containerd's, which are set
// aside with the images, and of etcd's, which is made again from its log; and the log, which is made again from the database. The cluster
// starts with all that is its own. So it does with a damaged value, which no program notices.
func TestStartsOnDamagedPages(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := newIsolatedCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(damageManifest)
	c.apply(damagePod("keeper", true))
	c.waitPodKept("keeper", "before any damage")
	c.mustRun("kubectl", "exec", "keeper", "--", "/bin/busybox", "sync")
	c.stop()

	// A value that is damaged within its page ends nothing: the API server waits for it, until the value is compared with the log.
	database := filepath.Join(c.dataDir, "etcd/member/snap/db")
	data := readFile(t, database)
	kind := []byte(`"kind":"CustomResourceDefinition"`)
	require.Contains(t, string(data), string(kind))
	require.NoError(t, os.WriteFile(database, bytes.ReplaceAll(data, kind, make([]byte, len(kind))), 0o600))
	c.up("--unsafe-no-fsync")
	c.waitPodKept("keeper", "the database is made again")
	require.Contains(t, string(readFile(t, filepath.Join(c.dataDir, "log", "controlplane.log"))), "a value of etcd's database is not the one that was written")

	for _, database := range []struct {
		path, aside, remedy string
		damage              func(t *testing.T, path string)
	}{
		{"etcd/member/snap/db", "etcd/member/snap/db.damaged-2", "nothing is lost", damagePages},
		{"etcd/member/wal/0000000000000000-0000000000000000.wal", "etcd/member.damaged", "made again from its database", flipBit},
		{"containerd/io.containerd.snapshotter.v1.overlayfs/metadata.db", "containerd.damaged", "imported again", damagePages},
		{"containerd/io.containerd.metadata.v1.bolt/meta.db", "containerd.damaged-2", "imported again", damagePages},
	} {
		uid := c.mustRun("kubectl", "get", "pod", "keeper", "-o", "jsonpath={.metadata.uid}")
		c.killIsolation(t)
		c.cleanup()
		database.damage(t, filepath.Join(c.dataDir, database.path))
		c.up("--unsafe-no-fsync")
		require.Equal(t, uid, c.mustRun("kubectl", "get", "pod", "keeper", "-o", "jsonpath={.metadata.uid}"), "after %s is damaged", database.path)
		importShell(t, c)
		c.waitPodKept("keeper", database.path+" is damaged")
		require.FileExists(t, filepath.Join(c.dataDir, database.path))
		_, err := os.Stat(filepath.Join(c.dataDir, database.aside))
		require.NoError(t, err)
		log := string(readFile(t, filepath.Join(c.dataDir, "log", "berth.log"))) + string(readFile(t, filepath.Join(c.dataDir, "log", "controlplane.log")))
		said := regexp.MustCompile(`aside="?` + regexp.QuoteMeta(filepath.Join(c.dataDir, database.aside)) + `"? [^\n]*` + database.remedy)
		require.Len(t, said.FindAllString(log, -1), 1, "it is logged once that %s is set aside, and what follows", database.path)
	}
	out, _ := c.run("doctor")                       // the machine may have other findings, which are errors
	require.Contains(t, out, "etcd/member.damaged") // the database that was set aside is in it
	require.Contains(t, out, "containerd.damaged")
	c.stop()
	require.Empty(t, append(c.leftovers(), c.leftoversOfIsolation(t)...))
}

// flipBit changes a bit of the first change that a log has.
func flipBit(t *testing.T, path string) {
	t.Helper()
	data := readFile(t, path)
	data[1000] ^= 4
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

// damagePages overwrites all pages of a database but those that describe it, as a device does that loses what it had acknowledged.
func damagePages(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer file.Close()
	described := int64(2 * os.Getpagesize())
	_, err = file.WriteAt(make([]byte, info.Size()-described), described)
	require.NoError(t, err)
}
