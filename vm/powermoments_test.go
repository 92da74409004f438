//go:build vm

package vm

import (
	"bytes"
	"context"
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
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/vm/writelog"
)

var (
	moments     = flag.Int("moments", 3, "at how many random moments TestPowerCutAtAnyMoment cuts the power")
	momentsFrom = flag.Int("moments-from", 0, "leave out the moments before this one, of the same seed")
	momentsLoad = flag.Duration("moments-load", 3*time.Minute, "how long the machine of TestPowerCutAtAnyMoment works while its disk is recorded")
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
		before := slices.DeleteFunc(slices.Clone(lines), func(a acknowledgement) bool { return a.Position > position })
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
func checkPowerMoment(t *testing.T, disk string, acknowledged []acknowledgement) {
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
	if slices.ContainsFunc(acknowledged, func(a acknowledgement) bool { return a.Line == podReady }) {
		c.waitFor("kubectl", "exec", "writer", "--", "/busybox", "true")
		last = requireRecorded(t, c, acknowledged)
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
func requireRecorded(t *testing.T, c *momentCluster, acknowledged []acknowledgement) (images []int) {
	t.Helper()
	var lines []string
	for _, a := range acknowledged {
		lines = append(lines, a.Line)
		if name, ok := strings.CutPrefix(a.Line, "image "); ok {
			var i int
			_, err := fmt.Sscanf(name, imageFormat, &i)
			require.NoError(t, err, a.Line)
			images = append(images, i)
		}
	}
	const read = "[ ! -e /disk/numbers ] || /busybox cat /disk/numbers"
	clusterContent{
		numbers: strings.Fields(c.output("kubectl", "exec", "writer", "--", "/busybox", "sh", "-c", read)),
		objects: strings.Fields(c.output("kubectl", "get", "secrets,pvc,pods", "-o", objectsTemplate)),
		volumes: globHost(t, filepath.Join(c.dir, "disks/volumes/*")),
		images:  strings.Fields(c.output("images", "list")),
	}.requireAll(t, lines)
	return images[max(0, len(images)-3):]
}

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

// momentLimit is how long a step of a cluster on this machine may take.
const momentLimit = 3 * time.Minute

// momentCluster is a cluster on this machine, in namespaces of its own.
type momentCluster struct {
	t     *testing.T
	dir   string
	cmd   *exec.Cmd
	out   tail
	ended chan error
}

// start starts the cluster, and returns when it is ready.
func (c *momentCluster) start() {
	c.t.Helper()
	port, err := freePort()
	require.NoError(c.t, err)
	c.cmd = c.command(context.WithoutCancel(c.t.Context()), "up", "--isolated", "--node-name", "node", "--api-port", strconv.Itoa(port),
		"--eviction-hard", "memory.available<0%,nodefs.available<0%,imagefs.available<0%")
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	require.NoError(c.t, c.cmd.Start())
	c.ended = make(chan error, 1)
	go func(cmd *exec.Cmd) { c.ended <- cmd.Wait() }(c.cmd)
	c.until(func() bool {
		select {
		case err := <-c.ended:
			c.cmd = nil
			require.FailNow(c.t, "the cluster does not start", "%v\n%s", err, &c.out)
		default:
		}
		return strings.Contains(c.out.String(), "is ready after")
	}, func() string { return "the cluster is not ready:\n" + c.out.String() })
}

// stop ends the cluster if it runs.
func (c *momentCluster) stop() {
	c.t.Helper()
	if c.cmd == nil {
		return
	}
	assert.NoError(c.t, c.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-c.ended:
		assert.NoError(c.t, err, &c.out)
	case <-time.After(momentLimit):
		assert.Fail(c.t, "the cluster does not end", &c.out)
		assert.NoError(c.t, c.cmd.Process.Kill())
		<-c.ended
	}
	c.cmd = nil
}

func (c *momentCluster) command(ctx context.Context, command string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(*programs, "berth"), append([]string{"--data-dir", c.dir, command}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Dir(c.dir)) // people's kubeconfig is none of the test's
	return cmd
}

// output runs a command of the cluster.
func (c *momentCluster) output(command string, args ...string) string {
	c.t.Helper()
	out, err := c.command(c.t.Context(), command, args...).CombinedOutput()
	require.NoError(c.t, err, "%s %v: %s", command, args, out)
	return string(out)
}

// create makes the object of a manifest.
func (c *momentCluster) create(manifest string) {
	c.t.Helper()
	cmd := c.command(c.t.Context(), "kubectl", "create", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "create %s: %s", manifest, out)
}

// importImage imports an archive.
func (c *momentCluster) importImage(archive []byte) {
	c.t.Helper()
	cmd := c.command(c.t.Context(), "images", "import", "-")
	cmd.Stdin = bytes.NewReader(archive)
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%s", out)
}

// waitFor runs a command until it succeeds.
func (c *momentCluster) waitFor(command string, args ...string) {
	c.t.Helper()
	var out []byte
	c.until(func() (done bool) {
		var err error
		out, err = c.command(c.t.Context(), command, args...).CombinedOutput()
		return err == nil
	}, func() string {
		pods, _ := c.command(c.t.Context(), "kubectl", "get", "pods,events").CombinedOutput()
		return fmt.Sprintf("%s %v: %s\n%s", command, args, out, pods)
	})
}

// waitEnded waits until the Pod has succeeded.
func (c *momentCluster) waitEnded(pod string) {
	c.t.Helper()
	phase := ""
	c.until(func() bool {
		phase = c.output("kubectl", "get", "pod", pod, "-o", "jsonpath={.status.phase}")
		return phase == "Succeeded" || phase == "Failed"
	}, func() string { return c.output("explain", "pod", pod) })
	if phase == "Failed" {
		require.FailNow(c.t, "pod "+pod+" has failed", "%s\n%s", c.output("kubectl", "logs", pod), c.output("explain", "pod", pod))
	}
}

// until asks until it is so.
func (c *momentCluster) until(done func() bool, otherwise func() string) {
	c.t.Helper()
	deadline := time.After(momentLimit)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-deadline:
			require.FailNow(c.t, "it takes too long", otherwise())
		}
	}
}
