//go:build vm

package vm

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/vm/writelog"
)

var (
	moments     = flag.Int("moments", 3, "at how many random moments TestPowerCutAtAnyMoment cuts the power")
	momentsFrom = flag.Int("moments-from", 0, "leave out the moments before this one, of the same seed")
	momentsLoad = flag.Duration("moments-load", 5*time.Minute, "how long the machine of TestPowerCutAtAnyMoment works while its disk is recorded")
	momentsSeed = flag.Uint64("moments-seed", 0, "seed of the moments and of what the disk loses; 0: a new one")
	momentsDir  = flag.String("moments-dir", "", "directory that keeps the recording of TestPowerCutAtAnyMoment; one that has a recording is used without the machine")
)

const (
	// momentsDisk is the size of the disk in GiB.
	momentsDisk = 6
	// momentsImages is the number of images that the machine has at hand.
	momentsImages = 100
)

// acknowledgement is a line that the machine has printed, or one of the two below, and how long the log of its disk was then.
type acknowledgement struct {
	Position int64  `json:"position"`
	Line     string `json:"line"`
}

const (
	fileSystemMade = "file system made"
	podReady       = "pod ready"
)

// TestPowerCutAtAnyMoment records what a machine writes to the disk of a cluster in which numbers are written to a volume, each flushed, and
// Secrets, claims, images and Pods are made and removed. Then it makes that disk as a power cut at a random moment leaves it: of what was not
// flushed, a disk may have kept any part. The cluster starts on each such disk, on this machine; everything that was acknowledged before the
// moment is there, what was removed is not, the last images run, and no file system has an error.
func TestPowerCutAtAnyMoment(t *testing.T) {
	dir := *momentsDir
	if dir == "" {
		dir = t.TempDir()
	}
	acknowledged := filepath.Join(dir, "acknowledged.json")
	if _, err := os.Stat(acknowledged); err != nil {
		recordPowerMoments(t, dir)
	}
	var lines []acknowledgement
	data, err := os.ReadFile(acknowledged)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &lines))
	log, err := writelog.Open(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer log.Close()

	seed := *momentsSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	positions := randomPositions(t, rand.New(rand.NewPCG(seed, 0)), lines, log.Moments())
	durable, err := os.Create(filepath.Join(t.TempDir(), "durable.img"))
	require.NoError(t, err)
	defer durable.Close()
	require.NoError(t, durable.Truncate(momentsDisk<<30))
	replay := log.Replay(durable)
	for i, position := range positions {
		require.NoError(t, replay.Advance(position))
		if i < *momentsFrom {
			continue
		}
		random := rand.New(rand.NewPCG(seed, uint64(i)+1))
		keep := []float64{0, 1, random.Float64()}[i%3]
		disk := cutDisk(t, durable.Name(), replay, func() bool { return random.Float64() < keep })
		var before []string
		for _, a := range lines {
			if a.Position <= position {
				before = append(before, a.Line)
			}
		}
		if !t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Logf("seed %d: %d acknowledged, %d requests not flushed, kept %.2f of each", seed, len(before), replay.Pending(), keep)
			checkPowerMoment(t, disk, before)
		}) && *momentsDir != "" {
			require.NoError(t, os.Rename(disk, filepath.Join(dir, fmt.Sprintf("failed-%d-%d.img", seed, i))))
			continue
		}
		require.NoError(t, os.Remove(disk))
	}
}

// randomPositions returns the positions of the moments, sorted, each right after a request: one in four is in the first start of the cluster.
func randomPositions(t *testing.T, random *rand.Rand, lines []acknowledgement, requests []int64) []int64 {
	t.Helper()
	ready := slices.IndexFunc(lines, func(a acknowledgement) bool { return a.Line == podReady })
	require.Positive(t, ready)
	made, _ := slices.BinarySearch(requests, lines[0].Position)
	began, _ := slices.BinarySearch(requests, lines[ready].Position)
	positions := make([]int64, *moments)
	for i := range positions {
		positions[i] = requests[began+random.IntN(len(requests)-began)]
		if i%4 == 3 {
			positions[i] = requests[made+random.IntN(began-made)]
		}
	}
	slices.Sort(positions)
	return positions
}

// cutDisk makes the disk of one moment.
func cutDisk(t *testing.T, durable string, replay *writelog.Replay, keep func() bool) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(durable), "cut.img")
	runHost(t, "cp", "--sparse=always", durable, path)
	disk, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer disk.Close()
	require.NoError(t, replay.Cut(disk, keep))
	return path
}

// momentsPod is a Pod that prints the digest of what the image has in a file, and ends.
func momentsPod(name, image string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
		"containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/busybox", "md5sum", "/content"]}]}}`, name, image)
}

// imageFormat is the name of an image with a number.
const imageFormat = "berth.dev/moment-%d:v1"

func momentsImage(i int) string { return fmt.Sprintf(imageFormat, i) }

// momentsContent is that file of an image.
func momentsContent(i int) []byte {
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(content) // never fails
	return content
}

func momentsArchive(t *testing.T, i int) []byte {
	t.Helper()
	program, err := os.ReadFile("/bin/busybox")
	require.NoError(t, err)
	return imageArchive(t, momentsImage(i), "busybox", map[string][]byte{"busybox": program, "content": momentsContent(i)})
}

// checkPowerMoment starts the cluster of a disk.
func checkPowerMoment(t *testing.T, disk string, lines []string) {
	point := filepath.Join(t.TempDir(), "mnt")
	require.NoError(t, os.Mkdir(point, 0o755))
	runHost(t, "mount", "-o", "loop", disk, point)
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			runHost(t, "umount", point)
		}
	}
	defer unmount()
	c := &momentCluster{t: t, dir: point}
	c.start()
	defer c.stop()
	var last []int
	if slices.Contains(lines, podReady) {
		c.waitFor("kubectl", "exec", "writer", "--", "/busybox", "true")
		last = requireRecorded(t, c, lines)
		requireRestored(t, c, lines)
	} else { // the first start goes on
		c.importImage(momentsArchive(t, 0))
		c.waitFor("kubectl", "get", "serviceaccount", "default")
		last = []int{0}
	}
	for _, i := range last {
		name := fmt.Sprintf("after-%d", i)
		c.create(momentsPod(name, momentsImage(i)))
		c.waitEnded(name)
		require.Equal(t, md5Of(momentsContent(i))+"  /content", strings.TrimSpace(c.output("kubectl", "logs", name)), "the content of image %d", i)
	}
	c.output("kubectl", "delete", "pod", "--all", "--timeout=1m")
	c.stop()
	for _, image := range globHost(t, filepath.Join(point, "disks/volumes/*/disk.img")) {
		if exec.CommandContext(t.Context(), "blkid", image).Run() == nil { // a claim that no Pod has used has no file system
			runHost(t, "e2fsck", "-f", "-n", image)
		}
	}
	unmount()
	runHost(t, "e2fsck", "-f", "-n", disk)
}

// requireRecorded compares what the cluster has with what was acknowledged, and returns the numbers of the last images.
func requireRecorded(t *testing.T, c *momentCluster, lines []string) (images []int) {
	t.Helper()
	for _, line := range lines {
		if name, ok := strings.CutPrefix(line, "image "); ok {
			var i int
			_, err := fmt.Sscanf(name, imageFormat, &i)
			require.NoError(t, err, line)
			images = append(images, i)
		}
	}
	const read = "[ ! -e /disk/numbers ] || /busybox cat /disk/numbers"
	snapshots := c.output("kubectl", "get", "volumesnapshots", "-o", `go-template={{range .items}}{{.kind}}/{{.metadata.name}}/{{.status.readyToUse}} {{end}}`)
	var size int
	_, err := fmt.Sscanf(c.output("kubectl", "get", "pvc", "disk", "-o", "jsonpath={.status.capacity.storage}"), "%dMi", &size)
	require.NoError(t, err)
	clusterContent{
		sizeMiB: size,
		numbers: strings.Fields(c.output("kubectl", "exec", "writer", "--", "/busybox", "sh", "-c", read)),
		objects: append(strings.Fields(c.output("kubectl", "get", "secrets,pvc,pods", "-o", objectsTemplate)), strings.Fields(snapshots)...),
		volumes: globHost(t, filepath.Join(c.dir, "disks/volumes/*")),
		images:  strings.Fields(c.output("images", "list")),
	}.requireAll(t, lines)
	return images[max(0, len(images)-3):]
}

// requireRestored restores the last snapshot: it has all numbers that were acknowledged before it was begun.
func requireRestored(t *testing.T, c *momentCluster, lines []string) {
	t.Helper()
	name, last, before := "", 0, map[string]int{}
	for _, line := range lines {
		kind, value, _ := strings.Cut(line, " ")
		switch kind {
		case "number":
			last, _ = strconv.Atoi(value) // requireAll has parsed it
		case "snapshotting":
			before[value] = last
		case "snapshot":
			name = value
		}
	}
	if name == "" {
		return
	}
	c.create(fmt.Sprintf(restoredManifest, c.output("kubectl", "get", "volumesnapshot", name, "-o", "jsonpath={.status.restoreSize}"), name, cutsWriter))
	c.waitEnded("restored")
	numbers := strings.Fields(c.output("kubectl", "logs", "restored"))
	requireConsecutive(t, numbers)
	require.GreaterOrEqual(t, len(numbers), before[name], "a number that was flushed before the snapshot is not in it")
}

// restoredManifest is a Pod that prints the numbers of a snapshot.
const restoredManifest = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: restored}
spec:
  storageClassName: cuts
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: %s}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: %s}
---
apiVersion: v1
kind: Pod
metadata: {name: restored}
spec:
  restartPolicy: Never
  volumes: [{name: disk, persistentVolumeClaim: {claimName: restored}}]
  containers:
  - {name: main, image: %q, imagePullPolicy: Never, command: [/busybox, cat, /disk/numbers], volumeMounts: [{name: disk, mountPath: /disk}]}
`

func globHost(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	require.NoError(t, err)
	return paths
}

func md5Of(content []byte) string {
	sum := md5.Sum(content)
	return hex.EncodeToString(sum[:])
}
