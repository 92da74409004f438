//go:build integration

package integration

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/statefile/corrupt"
)

var (
	damageStarts = flag.Int("damage-starts", 0, "how many starts TestStartsOnDamagedFiles does, on one damaged file each, and then on pairs; 0: one start on a file of each kind")
	damageFrom   = flag.Int("damage-from", 0, "leave out the starts before this one, of the same seed")
	damageOnly   = flag.String("damage-only", "", "regular expression of the files to damage")
)

// shortDamage is what the short form of TestStartsOnDamagedFiles finds damaged in its one start: a file of each kind, in another way.
var shortDamage = map[string]string{
	"pki/apiserver.crt": "half", "kubeconfigs/node.kubeconfig": "foreign", "pki/sa.key": "directory", "kubelet/pods/*/userns": "random bit",
	"kubelet/pods/*/volumes/*/*/vol_data.json": "empty", "disks/volumes/*/meta.json": "zeros", "cni/net.d/*": "link to nothing",
}

// damageWays are all ways to damage a file, with a bit at a random place among them.
func damageWays(random *rand.Rand) []corrupt.Way {
	return append(corrupt.Ways(), corrupt.Way{Name: "random bit", Do: func(path string) error {
		data, err := os.ReadFile(path)
		if err != nil || len(data) == 0 {
			return err
		}
		data[random.IntN(len(data))] ^= 1 << random.IntN(8)
		return os.WriteFile(path, data, 0o600)
	}})
}

// A damagedFile is a file of the data directory, and what happens to it.
type damagedFile struct {
	file string
	way  corrupt.Way
}

func (d damagedFile) String() string { return d.file + ": " + d.way.Name }

// TestStartsOnDamagedFiles kills a cluster that has Pods with volumes of every kind, and starts it again and again, each time from the
// same files but for one or two that are damaged. Each start succeeds, all data are there, and what was damaged is kept and said once.
// The exceptions are what docs/security.md names.
func TestStartsOnDamagedFiles(t *testing.T) {
	if *damageStarts == 0 {
		t.Skip("make corrupt runs it")
	}
	t.Parallel() // it waits most of the time
	seed := randomSeed(t)
	c := newIsolatedCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(damageManifest)
	c.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "List", "items": [%s, %s]}`, damagePod("keeper", true), damagePod("mapped", false)))
	c.waitKept("before any damage")
	c.mustRun("kubectl", "exec", "keeper", "--", "/bin/busybox", "sync")
	c.killIsolation(t)
	saved := c.dataDir + ".saved"
	c.cleanup() // loop devices of files that are replaced now
	copyTree(t, c.dataDir, saved)
	files := stateFiles(t, saved)
	t.Logf("%d state files: %s", len(files), strings.Join(files, " "))

	var failed [][]damagedFile
	for number, damaged := range damagePlan(t, files, seed) {
		if number < *damageFrom {
			continue
		}
		began := time.Now()
		if !t.Run(fmt.Sprintf("%d", number), func(t *testing.T) {
			c.t = t
			t.Cleanup(func() {
				if t.Failed() {
					c.endFailed()
				}
			})
			require.NoError(t, os.RemoveAll(c.dataDir))
			copyTree(t, saved, c.dataDir)
			for _, d := range damaged {
				require.NoError(t, d.way.Do(filepath.Join(c.dataDir, d.file)))
			}
			c.startDamaged(t, damaged)
		}) {
			failed = append(failed, damaged)
		}
		t.Logf("seed %d: start %d took %v, %d failed", seed, number, time.Since(began).Round(time.Second), len(failed))
	}
	c.t = t
	for _, damaged := range failed {
		t.Errorf("failed on %v", damaged)
	}
	require.NoError(t, os.RemoveAll(saved))
	require.Empty(t, append(c.leftovers(), c.leftoversOfIsolation(t)...))
}

// damagePlan returns which files each start finds damaged: in the short form some of all kinds, else each in each way, in a random order,
// and then pairs.
func damagePlan(t *testing.T, files []string, seed uint64) [][]damagedFile {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	ways := damageWays(random)
	if *damageStarts == 0 {
		var all []damagedFile
		for pattern, name := range shortDamage {
			at := slices.IndexFunc(files, func(file string) bool { match, err := filepath.Match(pattern, file); return err == nil && match })
			require.GreaterOrEqual(t, at, 0, "no file is %s", pattern)
			way := slices.IndexFunc(ways, func(way corrupt.Way) bool { return way.Name == name })
			all = append(all, damagedFile{files[at], ways[way]})
		}
		return [][]damagedFile{all}
	}
	files = slices.DeleteFunc(files, func(file string) bool { return !regexp.MustCompile(*damageOnly).MatchString(file) })
	var plan [][]damagedFile
	for _, file := range files {
		for _, way := range ways {
			plan = append(plan, []damagedFile{{file, way}})
		}
	}
	random.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
	for len(plan) < *damageStarts && len(files) > 1 {
		order := random.Perm(len(files))
		plan = append(plan, []damagedFile{{files[order[0]], ways[random.IntN(len(ways))]}, {files[order[1]], ways[random.IntN(len(ways))]}})
	}
	return plan[:min(len(plan), *damageStarts)]
}

// endFailed ends the cluster of a start that failed, so that the next one can follow.
func (c *cluster) endFailed() {
	c.dumpLogs()
	if c.cmd == nil {
		return
	}
	c.cleanup()
	<-c.ended
	c.cmd = nil
}

// startDamaged starts the cluster on damaged files, checks it, and stops it.
func (c *cluster) startDamaged(t *testing.T, damaged []damagedFile) {
	t.Helper()
	t.Logf("%v", damaged)
	refusable := func(names ...string) (all bool) {
		hit := 0
		for _, d := range damaged {
			if slices.Contains(names, d.file) && d.way.Name != "no permission" {
				hit++
			}
		}
		return hit == len(names)
	}
	c.launch("--unsafe-no-fsync")
	var ended error
	require.NoError(t, c.poll(func(context.Context) bool {
		select {
		case ended = <-c.ended:
			c.cmd = nil
			return true
		default:
			return strings.Contains(c.out.String(), "is ready after")
		}
	}), "the start does not end:\n%s", c.out)
	if c.cmd == nil {
		refused := refusable("cluster.json") || refusable("pki/secrets.key", "pki/secrets-copy.key")
		require.True(t, refused, "the start is refused (%v):\n%s", ended, c.out)
		require.Regexp(t, `restore|--reset|backup|use that berth`, c.out.String(), "it says what to do")
		return
	}
	c.waitKept(fmt.Sprint(damaged))
	var log strings.Builder
	log.WriteString(c.out.String())
	for _, name := range []string{"berth", "controlplane"} {
		log.Write(readFile(t, filepath.Join(c.dataDir, "log", name+".log")))
	}
	for _, d := range damaged {
		path := filepath.Join(c.dataDir, d.file)
		said := regexp.MustCompile(`(?i)set aside a damaged [^\n]*file="?`+regexp.QuoteMeta(path)+`"? [^\n]*remedy=`).FindAllString(log.String(), -1)
		kept, err := filepath.Glob(path + ".damaged*")
		require.NoError(t, err)
		if len(kept) > 0 {
			require.Len(t, said, 1, "%v is kept as %v", d, kept)
		}
		t.Logf("%v: kept %d, said %d", d, len(kept), len(said))
	}
	c.stop()
}

// damageManifest are the objects that have to be there after each start.
const damageManifest = claimsOfBothClasses + `apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {value: "of a Secret "}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config}
data: {value: "of a ConfigMap "}
`

// damagePod is a Pod that writes to its volumes once, and then only reads them.
func damagePod(name string, disks bool) string {
	mounts := `{"name": "scratch", "mountPath": "/v/scratch"}, {"name": "secret", "mountPath": "/v/secret"}, {"name": "config", "mountPath": "/v/config"}`
	volumes := `{"name": "scratch", "emptyDir": {}}, {"name": "secret", "secret": {"secretName": "secret"}}, {"name": "config", "configMap": {"name": "config"}}`
	if disks {
		mounts += `, {"name": "disk", "mountPath": "/v/disk"}, {"name": "local", "mountPath": "/v/local"}`
		volumes += `, {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}, {"name": "local", "persistentVolumeClaim": {"claimName": "local"}}`
	}
	script := `for d in /v/scratch /v/disk /v/local; do [ ! -d $d ] || [ -e /v/scratch/began ] || echo -n "in $d " > $d/value; done; touch /v/scratch/began; sync; exec /bin/busybox sleep 1000000`
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 1, "hostUsers": %t,
		"volumes": [%s], "containers": [%s]}}`, name, disks, volumes, shell(script, `"name": "main", "volumeMounts": [`+mounts+`]`))
}

// keptData is what the Pods of damagePod see in their volumes.
var keptData = map[string]string{
	"keeper": "of a ConfigMap in /v/disk in /v/local in /v/scratch of a Secret ", "mapped": "of a ConfigMap in /v/scratch of a Secret ",
}

// waitKept waits until the Pods run and see all their data.
func (c *cluster) waitKept(when string) {
	c.t.Helper()
	for pod := range keptData {
		c.waitPodKept(pod, when)
	}
}

// waitPodKept waits until the Pod runs and sees all its data.
func (c *cluster) waitPodKept(pod, when string) {
	c.t.Helper()
	var out string
	err := c.poll(func(context.Context) bool {
		var err error
		out, err = c.run("kubectl", "exec", pod, "--", "/bin/busybox", "sh", "-c", "cat /v/*/value")
		return err == nil && out == keptData[pod]
	})
	if err != nil {
		events, _ := c.run("kubectl", "get", "pods,events")
		explained, _ := c.run("explain", "pod", pod)
		require.NoError(c.t, err, "%s: the data of Pod %s: %s\n%s\n%s", when, pod, out, events, explained)
	}
}

// stateFiles are the files below the data directory that Berth keeps its state in, without those of etcd, containerd, logs, and what Pods
// have written.
func stateFiles(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		parent := filepath.Base(filepath.Dir(path))
		if entry.IsDir() {
			if slices.Contains([]string{"etcd", "containerd", "log", "volumes"}, name) || parent == "kubernetes.io~empty-dir" || entry.Name() == "containers" {
				return fs.SkipDir
			}
			return nil
		}
		if entry.Type().IsRegular() && entry.Name() != "lock" && filepath.Ext(name) != ".img" && entry.Name() != "disk" {
			files = append(files, name)
		}
		return nil
	}))
	require.NotEmpty(t, files)
	return files
}

// copyTree copies a directory with everything that files have, and with their holes.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "cp", "-a", "--sparse=always", from, to).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
