//go:build integration

package integration

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStartsOnDamagedPages kills a cluster that has a Pod with volumes, and damages the pages of a database: of containerd's, which are set
// aside with the images, and of etcd's, which is made again from its log; and the log, which is made again from the database. The cluster
// starts with all that is its own. So it does with a damaged value that the API server needs; another one is made again when it is read.
func TestStartsOnDamagedPages(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := newIsolatedCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(damageManifest)
	c.apply(damagePod("keeper", true))
	c.waitPodKept("keeper", "before any damage")
	c.mustRun("kubectl", "create", "secret", "generic", "own", "--from-literal=value=secret")
	c.apply(ownKind)
	c.mustRun("kubectl", "wait", "--for=condition=Established", "crd/owns.test.example", "--timeout=1m")
	c.apply(`{"apiVersion": "test.example/v1", "kind": "Own", "metadata": {"name": "one"}, "spec": {"value": "custom"}}`)
	c.mustRun("kubectl", "exec", "keeper", "--", "/bin/busybox", "sync")
	c.stop()

	damageValues(t, c)
	c.up("--unsafe-no-fsync")

	for _, pages := range []struct {
		path, aside, remedy string
		damage              func(t *testing.T, path string)
	}{
		{"etcd/member/snap/db", "etcd/member/snap/db.damaged-4", "nothing is lost", damagePages},
		{"etcd/member/wal/0000000000000000-0000000000000000.wal", "etcd/member.damaged", "made again from its database", flipBit},
		{"containerd/io.containerd.snapshotter.v1.overlayfs/metadata.db", "containerd.damaged", "imported again", damagePages},
		{"containerd/io.containerd.metadata.v1.bolt/meta.db", "containerd.damaged-2", "imported again", damagePages},
	} {
		uid := c.mustRun("kubectl", "get", "pod", "keeper", "-o", "jsonpath={.metadata.uid}")
		c.killIsolation(t)
		c.cleanup()
		pages.damage(t, filepath.Join(c.dataDir, pages.path))
		c.up("--unsafe-no-fsync")
		require.Equal(t, uid, c.mustRun("kubectl", "get", "pod", "keeper", "-o", "jsonpath={.metadata.uid}"), "after %s is damaged", pages.path)
		importShell(t, c)
		c.waitPodKept("keeper", pages.path+" is damaged")
		require.FileExists(t, filepath.Join(c.dataDir, pages.path))
		_, err := os.Stat(filepath.Join(c.dataDir, pages.aside))
		require.NoError(t, err)
		log := string(readFile(t, filepath.Join(c.dataDir, "log", "berth.log"))) + string(readFile(t, filepath.Join(c.dataDir, "log", "controlplane.log")))
		said := regexp.MustCompile(`aside="?` + regexp.QuoteMeta(filepath.Join(c.dataDir, pages.aside)) + `"? [^\n]*` + pages.remedy)
		require.Len(t, said.FindAllString(log, -1), 1, "it is logged once that %s is set aside, and what follows", pages.path)
	}
	out, _ := c.run("doctor")                       // the machine may have other findings, which are errors
	require.Contains(t, out, "etcd/member.damaged") // the database that was set aside is in it
	require.Contains(t, out, "containerd.damaged")
	c.stop()
	require.Empty(t, append(c.leftovers(), c.leftoversOfIsolation(t)...))
}

// damageValues damages values within their pages, which ends nothing: who reads one gets an error, until it is compared with the log. The cluster
// does not run, neither before nor after.
func damageValues(t *testing.T, c *cluster) {
	t.Helper()
	database := filepath.Join(c.dataDir, "etcd/member/snap/db")
	for _, damage := range []struct {
		value, aside string
		read         []string
		want         string
	}{
		{`"kind":"CustomResourceDefinition"`, "db.damaged", []string{"kubectl", "get", "crd", "owns.test.example", "-o", "name"}, "customresourcedefinition.apiextensions.k8s.io/owns.test.example\n"},
		{`{"value":"custom"}`, "db.damaged-2", []string{"kubectl", "get", "own", "one", "-o", "jsonpath={.spec.value}"}, "custom"},
		{"k8s:enc:", "db.damaged-3", []string{"kubectl", "get", "secret", "own", "-o", "go-template={{.data.value | base64decode}}"}, "secret"},
	} {
		data := readFile(t, database)
		require.Contains(t, string(data), damage.value)
		require.NoError(t, os.WriteFile(database, bytes.ReplaceAll(data, []byte(damage.value), make([]byte, len(damage.value))), 0o600))
		c.up("--unsafe-no-fsync")
		require.NoError(t, c.poll(func(context.Context) bool {
			out, err := c.run(damage.read...)
			return err == nil && out == damage.want
		}), "%s", damage.value)
		require.FileExists(t, filepath.Join(filepath.Dir(database), damage.aside))
		c.waitPodKept("keeper", "the database is made again")
		c.stop()
	}
}

const ownKind = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "owns.test.example"}, "spec": {
	"group": "test.example", "scope": "Namespaced", "names": {"plural": "owns", "singular": "own", "kind": "Own", "listKind": "OwnList"},
	"versions": [{"name": "v1", "served": true, "storage": true,
		"schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"value": {"type": "string"}}}}}}}]}}`

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
