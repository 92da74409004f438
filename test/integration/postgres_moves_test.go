//go:build integration

package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/csidriver/registrar"
)

var postgresMoves = flag.Int("postgres-moves", 0, "how many times TestPostgresIsNeverMountedTwice moves a PostgreSQL to another node; 0: it does not run")

// postgresMoveKinds are the ways in which a PostgreSQL leaves a node.
var postgresMoveKinds = []string{"drain", "power", "power", "cut"}

// TestPostgresIsNeverMountedTwice moves a PostgreSQL between two nodes whose disks move with it, because a node is drained, loses its power and is
// declared out of service, or is cut off while its Pod is deleted by force, and returns. Meanwhile the controllers are killed at random. A witness
// before each node's driver, which leaves its claims on the disk itself, proves that the disk is never mounted on both nodes, and a client that logs
// acknowledged commits that none is lost.
func TestPostgresIsNeverMountedTwice(t *testing.T) {
	if *postgresMoves == 0 {
		t.Skip("make postgres-moves runs it")
	}
	w := newPostgresMoves(t)
	seed := randomSeed(t)
	counts := make(map[string]int)
	for number := *postgresFrom; number < *postgresFrom+*postgresMoves; number++ {
		random := rand.New(rand.NewPCG(seed, uint64(number)))
		kind := postgresMoveKinds[random.IntN(len(postgresMoveKinds))]
		began := time.Now()
		w.move(kind, random)
		counts[kind]++
		when := fmt.Sprintf("after %s, move %d of -seed %d", kind, number, seed)
		w.requireProgress(when, w.acknowledged())
		require.NoError(t, w.check(w.primary, -1), when)
		w.witness.requireNoViolation(t, 1)
		t.Logf("move %d: %s: %d commits, all there, staged %d times, after %s", number, kind, w.acknowledged(), w.witness.staged, time.Since(began).Round(time.Second))
	}
	history := w.disks.publicationHistory()[w.volumeOf(postgresClaim)]
	require.GreaterOrEqual(t, len(history), *postgresMoves, "it has moved each time")
	image := w.disks.image(w.volumeOf(postgresClaim))
	w.mustRun("kubectl", "delete", "statefulset/pg", "service/pg", "service/pg-primary", "configmap/pg", "--cascade=foreground", "--wait")
	require.NoError(t, w.checkDisk(image))
	w.witness.requireNoViolation(t, *postgresMoves)
	t.Logf("%d moves, %v: %d acknowledged commits, none lost; staged %d times, never on two nodes", *postgresMoves, counts, w.acknowledged(), w.witness.staged)
	w.disks.checkNothingLeft()
}

// postgresMovesTest is the fixture: two machines beside the cluster's own node, which runs the controllers alone.
type postgresMovesTest struct {
	postgresCluster
	disks    *sharedDisks
	witness  *mountWitness
	machines [2]*machine
}

func newPostgresMoves(t *testing.T) *postgresMovesTest {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	w := &postgresMovesTest{postgresCluster: postgresCluster{cluster: c, t: t}, disks: newSharedDisks(t, c)}
	w.witness = newMountWitness(w.disks.root)
	archive := debianArchive(t)
	var hosts []string
	for i := range w.machines {
		m := newMachine(t, c, i+1)
		w.machines[i] = m
		hosts = append(hosts, m.address)
		w.watch(m)
		m.start(w.driver)
		out, err := exec.CommandContext(t.Context(), c.berth, "images", "--socket", m.runtime.Socket(), "import", archive).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	c.mustRun("kubectl", "cordon", homeNode)
	for _, m := range w.machines {
		c.waitNode(m.name, "ready", nodeReady)
		c.waitRegistered(m.name, sharedDriver)
	}
	// In the machine's own network the database has the same address each time.
	w.startPostgres(postgresManifest(t, "storageClassName: berth-loop", "storageClassName: shared",
		"      securityContext: {runAsUser", "      hostNetwork: true\n      securityContext: {runAsUser"),
		func() string { return strings.Join(hosts, ",") })
	return w
}

// image is the file of a disk.
func (s *sharedDisks) image(volume string) string {
	return filepath.Join(s.root, "volumes", volume, "disk.img")
}

// driver is the driver of a machine, which the kubelet reaches through the witness.
func (w *postgresMovesTest) driver(m *machine) []string {
	return []string{w.berth, "csi-driver", "--name", sharedDriver, "--shared", "--node-only", "--root", w.disks.root, "--node-id", m.name,
		"--endpoint", filepath.Join(m.run, "csi.sock")}
}

// watch puts the witness before the driver of the machine. It outlives the machine's power.
func (w *postgresMovesTest) watch(m *machine) {
	t := w.t
	proxy := newCSIProxy(t, filepath.Join(runDir(t, "berth-w"), "csi.sock"), filepath.Join(m.run, "csi.sock"), rand.New(rand.NewPCG(0, 0)), w.witness.around(m.name))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- registrar.Serve(ctx, registrar.Deps{}, registrar.Config{Registry: m.registry(), Driver: sharedDriver, Endpoint: proxy.socket})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// where returns the machine that runs the database, and the other one.
func (w *postgresMovesTest) where() (holder, other *machine, pod *corev1.Pod) {
	w.t.Helper()
	pod = w.waitPod("app=pg", "ready", isReady)
	if pod.Spec.NodeName == w.machines[0].name {
		return w.machines[0], w.machines[1], pod
	}
	require.Equal(w.t, w.machines[1].name, pod.Spec.NodeName)
	return w.machines[1], w.machines[0], pod
}

// move has the database leave its machine.
func (w *postgresMovesTest) move(kind string, random *rand.Rand) {
	from, to, pod := w.where()
	arrived := func() {
		w.t.Helper()
		w.waitPod("app=pg", "ready on "+to.name, func(now *corev1.Pod) bool {
			return now.UID != pod.UID && now.Spec.NodeName == to.name && isReady(now)
		})
	}
	switch kind {
	case "drain":
		drained := make(chan error, 1)
		go func() {
			_, err := w.persist("kubectl", "drain", from.name, "--force", "--timeout=2m")
			drained <- err
		}()
		w.killControllers(random)
		require.NoError(w.t, <-drained)
		arrived()
		w.mustRun("kubectl", "uncordon", from.name)
	case "power":
		from.kill()
		from.unmount()
		require.NoError(w.t, w.witness.powerLost(from.name))
		w.mustRun("kubectl", "taint", "node", from.name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
		w.waitNode(from.name, "lost", func(node *corev1.Node) bool { return !nodeReady(node) })
		w.killControllers(random)
		arrived()
		w.mustRun("kubectl", "taint", "node", from.name, "node.kubernetes.io/out-of-service-")
		from.start(w.driver)
		w.waitNode(from.name, "back", nodeReady)
	case "cut":
		w.cutOff(from, to, pod, random)
		arrived()
	}
}

// cutOff cuts the machine off, which goes on to use its disk, and deletes its Pod by force. The new one must wait until the machine is back and has
// released the disk.
func (w *postgresMovesTest) cutOff(from, to *machine, pod *corev1.Pod, random *rand.Rand) {
	from.cutLink()
	w.waitNode(from.name, "lost", func(node *corev1.Node) bool { return !nodeReady(node) })
	w.mustRun("kubectl", "delete", "pod", postgresPod, "--force", "--grace-period=0")
	w.waitPod("app=pg", "assigned to "+to.name, func(now *corev1.Pod) bool { return now.UID != pod.UID && now.Spec.NodeName == to.name })
	w.killControllers(random)
	time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond) // a random moment is what this is about
	mounts, err := mountsOfDisk(w.disks.image(w.volumeOf(postgresClaim)))
	require.NoError(w.t, err)
	require.NotEmpty(w.t, mounts, "the machine that is cut off has it mounted")
	require.NotContains(w.t, fmt.Sprint(mounts), to.dir)
	require.False(w.t, isReady(w.waitPod("app=pg", "there", func(*corev1.Pod) bool { return true })), "it must wait for its disk")
	from.restoreLink()
	w.waitNode(from.name, "back", nodeReady)
}

// killControllers kills the process with the attach/detach controller, the control plane, or none, and waits until the API responds.
func (w *postgresMovesTest) killControllers(random *rand.Rand) {
	time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond) // a random moment is what this is about
	if name := []string{"node", "controlplane", ""}[random.IntN(3)]; name != "" {
		w.killChild(name)
	}
	_, err := w.persist("kubectl", "get", "nodes", "--request-timeout=10s")
	require.NoError(w.t, err)
}
