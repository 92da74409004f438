//go:build integration

package integration

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

var (
	postgresRounds = flag.Int("postgres-rounds", 0, "how many rounds TestPostgresLosesNothing runs; 0: it does not run")
	postgresFrom   = flag.Int("postgres-from", 0, "the first round: with -seed of an earlier run, the rounds from there on are the same")
	postgresFlags  = flag.String("postgres-up", "", "further flags of berth up for TestPostgresLosesNothing, separated by spaces")
)

const (
	// postgresPod is the Pod with the database, and postgresClaim its claim.
	postgresPod, postgresClaim = "pg-0", "data-pg-0"
	// progressPerRound is how many commits have to be acknowledged after the faults of a round.
	progressPerRound = 20
	// checkTimeout is that of one attempt to check a database: an address whose Pod has gone does not respond.
	checkTimeout = 45 * time.Second
	// restEvery is after how many rounds the database rests, its disk is checked, and nothing else may be left.
	restEvery = 10
)

// TestPostgresLosesNothing runs a PostgreSQL of Debian's packages as a StatefulSet on a disk of class berth-loop. A client outside of the
// cluster logs every commit that PostgreSQL acknowledges. Each round kills some of the processes of the cluster, or all, and deletes the
// Pod with and without grace; at random it takes a snapshot, restores it to a second PostgreSQL, and expands the claim meanwhile. After
// each round every acknowledged commit has to be there once, and each snapshot has to have all that were acknowledged before it was
// requested.
func TestPostgresLosesNothing(t *testing.T) {
	if *postgresRounds == 0 {
		t.Skip("make postgres-rounds runs it")
	}
	w := newPostgresChaos(t)
	began := time.Now()
	last := *postgresFrom + *postgresRounds
	for number := *postgresFrom; number < last; number++ {
		w.round(number)
		if (number+1)%restEvery == 0 || number+1 == last {
			w.rest(number)
		}
	}
	t.Logf("%d rounds in %s: %d acknowledged commits, none lost; %d snapshots restored, %d expansions; %d times a clean disk; faults: %v",
		*postgresRounds, time.Since(began).Round(time.Second), w.acknowledged(), w.restored, w.expansions, w.cleanDisks, w.faultSummary())
	w.shutdown()
}

// postgresRound is what happens in a round, all of it drawn before.
type postgresRound struct {
	number int
	faults []string
	pauses []time.Duration // before each fault
	random *rand.Rand      // for the faults: which process
	// snapshot and expand say whether the claim is copied and expanded, and after which pauses.
	snapshot, expand           bool
	snapshotAfter, expandAfter time.Duration
}

func drawPostgresRound(seed uint64, number int) postgresRound {
	random := rand.New(rand.NewPCG(seed, uint64(number)))
	pause := func() time.Duration { return time.Duration(random.IntN(1500)) * time.Millisecond }
	r := postgresRound{number: number, random: random}
	for range 1 + random.IntN(3) {
		r.faults = append(r.faults, postgresFaults[random.IntN(len(postgresFaults))])
		r.pauses = append(r.pauses, pause())
	}
	r.snapshot, r.snapshotAfter = random.IntN(3) == 0, pause()
	r.expand, r.expandAfter = random.IntN(4) == 0, pause()
	return r
}

// postgresCluster is a cluster with a PostgreSQL to which a client commits.
type postgresCluster struct {
	*cluster
	t *testing.T
	// client is the program of test/commits, log its log, and hosts the addresses where the database may be, separated by commas.
	client, log, hosts string
}

// postgresManifest is one PostgreSQL without a replica. At most one Pod uses its volume at a time, whatever happens to the first one: a
// StatefulSet replaces a Pod that was deleted by force while its processes may still run. changes are pairs of a text and its replacement.
func postgresManifest(t *testing.T, changes ...string) string {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join("testdata", "workloads", "postgres.yaml"))
	require.NoError(t, err)
	changes = append(changes, "replicas: 2", "replicas: 1", "[ReadWriteOnce]", "[ReadWriteOncePod]")
	return strings.NewReplacer(changes...).Replace(string(manifest))
}

// startPostgres starts the database, and the client when the database is ready, with the address that hosts returns.
func (p *postgresCluster) startPostgres(manifest string, hosts func() string) {
	t := p.t
	p.client = thirdPartyBinary(t, "commits")
	dir := t.TempDir()
	p.log = filepath.Join(dir, "acknowledged")
	p.apply(manifest)
	p.waitPod("app=pg", "ready", isReady)
	p.hosts = hosts()
	p.startBeside(filepath.Join(dir, "client.log"), p.client, "write", "-url", postgresURL(p.hosts), "-log", p.log)
	p.requireProgress("at the start", 0)
}

func postgresURL(host string) string {
	return "postgres://postgres@" + host + ":5432/postgres?sslmode=disable"
}

// acknowledged is how many commits were acknowledged so far.
func (p *postgresCluster) acknowledged() int {
	data, err := os.ReadFile(p.log)
	if errors.Is(err, os.ErrNotExist) {
		return 0 // the client has not begun
	}
	require.NoError(p.t, err)
	return bytes.Count(data, []byte("\n"))
}

// requireProgress waits until so many commits more than before were acknowledged.
func (p *postgresCluster) requireProgress(when string, before int) {
	p.t.Helper()
	if err := p.poll(func(context.Context) bool { return p.acknowledged() >= before+progressPerRound }); err != nil {
		out, _ := p.run("explain", "pod", postgresPod)
		logs, _ := p.run("kubectl", "logs", postgresPod, "--tail=30")
		require.NoError(p.t, err, "%s PostgreSQL acknowledges nothing:\n%s\n%s", when, out, logs)
	}
}

// check checks that a database has the first lines of the log (all, if negative), as soon as it can be reached. An error says that it is not sound, or
// cannot be reached.
func (p *postgresCluster) check(address func(context.Context) (string, error), lines int) error {
	var last error
	err := p.poll(func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		var host string
		if host, last = address(ctx); last != nil || host == "" {
			return false
		}
		command := exec.CommandContext(ctx, p.client, "check", "-url", postgresURL(host), "-log", p.log,
			"-lines", fmt.Sprint(lines), "-deep")
		out, err := command.CombinedOutput()
		if last = err; err != nil {
			last = fmt.Errorf("%w: %s", err, out)
		}
		var exit *exec.ExitError
		return err == nil || errors.As(err, &exit) && exit.ExitCode() == 1
	})
	return errors.Join(last, err)
}

// persist runs berth until it succeeds: the API server may be away.
func (p *postgresCluster) persist(args ...string) (string, error) {
	var out string
	var last error
	if err := p.poll(func(context.Context) bool {
		out, last = p.run(args...)
		return last == nil
	}); err != nil {
		return out, fmt.Errorf("berth %s: %w: %w: %s", strings.Join(args, " "), err, last, out)
	}
	return out, nil
}

// postgresChaos is the fixture of the test.
type postgresChaos struct {
	postgresCluster
	seed   uint64
	counts map[string]int // of faults
	// size is what the claim requests, in MiB.
	size                             int
	restored, expansions, cleanDisks int
}

const (
	// firstSize is the size of the claim in the manifest, expandBy how much an expansion adds, in MiB.
	firstSize, expandBy = 512, 16
)

func newPostgresChaos(t *testing.T) *postgresChaos {
	c := newClusterWithServices(t)
	c.args = append(c.args, strings.Fields(*postgresFlags)...)
	w := &postgresChaos{postgresCluster: postgresCluster{cluster: c, t: t}, counts: make(map[string]int), size: firstSize}
	w.seed = randomSeed(t)
	w.up("--unsafe-no-fsync")
	importDebian(t, c)
	w.startPostgres(postgresManifest(t), func() string {
		return w.mustRun("kubectl", "get", "service", "pg-primary", "-o", "jsonpath={.spec.clusterIP}")
	})
	return w
}

// round lets a round's faults happen, and checks what is left of the data.
func (w *postgresChaos) round(number int) {
	r := drawPostgresRound(w.seed, number)
	began := time.Now()
	copied, expanded := make(chan error, 1), make(chan error, 1)
	go func() { copied <- w.copyAndRestore(r) }()
	go func() { expanded <- w.expand(r) }()
	for i, fault := range r.faults {
		time.Sleep(r.pauses[i]) // a random moment is what this is about
		w.counts[fault]++
		w.fault(fault, r.random)
	}
	err := errors.Join(<-copied, <-expanded)
	require.NoError(w.t, err, "round %d of -seed %d: %v", number, w.seed, r.faults)
	w.requireProgress(fmt.Sprintf("after %v in round %d of -seed %d", r.faults, number, w.seed), w.acknowledged())
	require.NoError(w.t, w.check(w.primary, -1), "round %d of -seed %d: %v", number, w.seed, r.faults)
	w.t.Logf("round %d: %v, snapshot %t, expansion %t: %d commits, all there, after %s", number, r.faults, r.snapshot, r.expand, w.acknowledged(),
		time.Since(began).Round(100*time.Millisecond))
}

// primary is where the database may be.
func (p *postgresCluster) primary(context.Context) (string, error) { return p.hosts, nil }

func (w *postgresChaos) faultSummary() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(w.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, w.counts[name]))
	}
	return strings.Join(parts, ", ")
}

// rest stops the database, checks its disk, and starts it again, when its claim has to have the size that was requested.
func (w *postgresChaos) rest(number int) {
	t := w.t
	when := fmt.Sprintf("after round %d of -seed %d", number, w.seed)
	image := w.imageOf(postgresClaim)
	w.mustRun("kubectl", "scale", "statefulset/pg", "--replicas=0")
	w.mustRun("kubectl", "wait", "--for=delete", "pod/"+postgresPod, "--timeout=3m")
	require.NoError(t, w.checkDisk(image), when)
	w.cleanDisks++
	w.requireOnlyDatabase(when)
	w.mustRun("kubectl", "scale", "statefulset/pg", "--replicas=1")
	w.waitPod("app=pg", "ready "+when, isReady)
	claim, err := waitClaim(t.Context(), w.cluster, postgresClaim, func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.Status.Capacity.Storage().Value() == int64(w.size)<<20 && len(claim.Status.Conditions) == 0
	})
	require.NoError(t, err, "%s the claim has to have %d MiB: %v", when, w.size, claim)
	require.NoError(t, w.check(w.primary, -1), when)
}

// shutdown removes the database and everything else.
func (w *postgresChaos) shutdown() {
	w.mustRun("kubectl", "delete", "statefulset/pg", "service/pg", "service/pg-primary", "configmap/pg", "--cascade=foreground", "--wait")
	w.mustRun("kubectl", "delete", "pvc", postgresClaim, "--timeout=3m")
	w.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=3m")
	left, err := filepath.Glob(filepath.Join(w.dataDir, "disks", "volumes", "*"))
	require.NoError(w.t, err)
	require.Empty(w.t, left, "the disks are deleted with their claims")
	w.stop()
	require.Empty(w.t, w.leftovers())
	require.Empty(w.t, w.loopDevices())
}
