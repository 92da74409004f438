//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
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

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/internal/pidfile"
)

var (
	soakFaults = flag.Int("soak-faults", 0, "how many faults TestSoak causes in all; 0: it does not run")
	soakState  = flag.String("soak-state", "", "file in which TestSoak keeps its seed and how many faults it has caused, to go on there")
)

const (
	// soakEpoch is how many faults one cluster gets, and soakRound after how many of them everything has to be in order.
	soakEpoch, soakRound = 40, 8
	soakWriters          = 3
	// soakDisk is the size of the file system of the cluster, which faults fill.
	soakDisk = 3 << 30
)

// soakProgress is what a soak that is interrupted needs to go on.
type soakProgress struct {
	Seed   uint64         `json:"seed"`
	Faults int            `json:"faults"`
	Kinds  map[string]int `json:"kinds"`
}

// TestSoak causes faults of all kinds at random, in one cluster after the other, while Pods write to their disks, and Pods, claims,
// snapshots and expansions come and go. After every few faults everything works, no acknowledged write is lost, and nothing is left of what
// is gone; at the end of a cluster its processes have no more descriptors and memory than at its beginning.
func TestSoak(t *testing.T) {
	if *soakFaults == 0 {
		t.Skip("make soak runs it")
	}
	progress := loadSoak(t)
	for progress.Faults < *soakFaults {
		epoch := progress
		epoch.Kinds = maps.Clone(progress.Kinds)
		if !t.Run(fmt.Sprintf("from fault %d", progress.Faults), func(t *testing.T) { newSoak(t, &epoch).run() }) {
			t.Fatalf("seed %d, after fault %d", progress.Seed, epoch.Faults)
		}
		progress = epoch
		progress.save(t)
		t.Logf("seed %d: %d of %d faults: %v", progress.Seed, progress.Faults, *soakFaults, progress.Kinds)
	}
}

func loadSoak(t *testing.T) soakProgress {
	t.Helper()
	progress := soakProgress{Kinds: make(map[string]int)}
	if data, err := os.ReadFile(*soakState); err == nil {
		require.NoError(t, json.Unmarshal(data, &progress), *soakState)
	}
	if progress.Seed == 0 {
		progress.Seed = randomSeed(t)
	}
	return progress
}

func (p soakProgress) save(t *testing.T) {
	t.Helper()
	if *soakState == "" {
		return
	}
	data, err := json.Marshal(p)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*soakState, append(data, '\n'), 0o600))
}

// soak is one cluster and what happens to it.
type soak struct {
	*cluster
	t        *testing.T
	random   *rand.Rand
	progress *soakProgress
	// disk is the mount point of the cluster's file system.
	disk string
	// written is what each writer was seen to have written and flushed.
	written map[string]string
	// transient counts the Pods and claims that come and go.
	transient int
}

func newSoak(t *testing.T, progress *soakProgress) *soak {
	c := newCluster(t)
	s := &soak{cluster: c, t: t, random: rand.New(rand.NewPCG(progress.Seed, uint64(progress.Faults))), progress: progress,
		disk: filepath.Dir(c.dataDir), written: make(map[string]string)}
	image := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, soakDisk))
	for _, command := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, s.disk}} {
		out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	t.Cleanup(func() { // the test that failed may not have come to its end
		if t.Failed() {
			c.endFailed()
		}
		_ = syscall.Unmount(s.disk, syscall.MNT_DETACH)
	})
	return s
}

// run is one epoch.
func (s *soak) run() {
	s.args = append(s.args, noEviction) // it would end writers when the disk is full
	s.up("--unsafe-no-fsync")
	importShell(s.t, s.cluster)
	s.apply(soakClass)
	for i := range soakWriters {
		s.apply(writerManifest(i))
	}
	s.requireOrder("before the first fault")
	s.requireGone()
	before := s.footprint()
	for fault := range soakEpoch {
		s.churn()
		kind := s.fault()
		s.progress.Kinds[kind]++
		s.progress.Faults++
		if (fault+1)%soakRound == 0 {
			s.requireOrder(fmt.Sprintf("after fault %d, %s", s.progress.Faults, kind))
		}
	}
	s.restartContainerd()
	s.requireGone()
	s.requireFootprint(before)
	s.stop()
	require.Empty(s.t, s.leftovers())
	devices, err := loopdev.New().List(func(backing string) bool { return strings.HasPrefix(backing, s.dataDir) })
	require.NoError(s.t, err)
	require.Empty(s.t, devices, "loop devices")
	require.NoError(s.t, syscall.Unmount(s.disk, 0), "nothing uses the file system of the cluster")
}

// restartContainerd has containerd start once more with space on its disk: until then it has the descriptors of containers that it lost when it
// started without.
func (s *soak) restartContainerd() {
	s.t.Helper()
	file := filepath.Join(s.runDir(), "containerd.pid")
	before := pidfile.Running(pidfile.Proc, file)
	require.NotZero(s.t, before)
	require.NoError(s.t, syscall.Kill(before, syscall.SIGKILL))
	require.True(s.t, s.waitLong(func() bool {
		pid := pidfile.Running(pidfile.Proc, file)
		return pid != 0 && pid != before
	}), "containerd does not start again")
	s.requireOrder("after the last start of containerd")
}

// soakClass is the class of the writers' disks, whose blocks are allocated at once: those of a full file system that are not cannot be written.
const soakClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: soak}
provisioner: csi.berth.dev
parameters: {preallocate: "true"}
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
`

// writerManifest is a Pod that writes one number after the other to its disk, and flushes each.
func writerManifest(i int) string {
	script := "while :; do n=$(tail -n 1 /data/numbers 2>/dev/null); echo $((n+1)) >> /data/numbers && sync /data/numbers; sleep 0.2; done"
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "List", "items": [
		{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "writer-%[1]d"}, "spec": {"storageClassName": "soak",
			"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "32Mi"}}}},
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer-%[1]d", "labels": {"app": "writer-%[1]d"}}, "spec": {"terminationGracePeriodSeconds": 1,
			"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "writer-%[1]d"}}], "containers": [%[2]s]}}]}`,
		i, shell(script, `"name": "main", "volumeMounts": [{"name": "data", "mountPath": "/data"}]`))
}

// churn creates or deletes Pods, claims and snapshots, and expands claims. Each request may fail.
func (s *soak) churn() {
	try := func(args ...string) { _, _ = s.cluster.run(append([]string{"kubectl"}, args...)...) }
	switch s.random.IntN(5) {
	case 0, 1:
		s.transient++
		manifest := filepath.Join(s.t.TempDir(), "transient.yaml")
		text := strings.ReplaceAll(writerManifest(s.transient), "writer-", "transient-")
		require.NoError(s.t, os.WriteFile(manifest, []byte(text), 0o600))
		try("apply", "--request-timeout=10s", "-f", manifest)
	case 2:
		number := strconv.Itoa(1 + s.random.IntN(max(1, s.transient)))
		try("delete", "--wait=false", "--request-timeout=10s", "pod,pvc", "transient-"+number)
	case 3:
		manifest := filepath.Join(s.t.TempDir(), "snapshot.yaml")
		require.NoError(s.t, os.WriteFile(manifest, fmt.Appendf(nil, `{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
			"metadata": {"generateName": "soak-"}, "spec": {"source": {"persistentVolumeClaimName": "writer-%d"}}}`, s.random.IntN(soakWriters)), 0o600))
		try("create", "--request-timeout=10s", "-f", manifest)
	case 4:
		try("patch", "--request-timeout=10s", "pvc", fmt.Sprintf("writer-%d", s.random.IntN(soakWriters)), "-p",
			fmt.Sprintf(`{"spec": {"resources": {"requests": {"storage": "%dMi"}}}}`, 33+s.progress.Faults%64))
	}
}

// fault causes one fault at a random moment and returns its kind.
func (s *soak) fault() string {
	time.Sleep(time.Duration(s.random.IntN(2000)) * time.Millisecond) // a random moment is what this is about
	switch number := s.random.IntN(12); number {
	case 0, 1, 2, 3, 4, 5:
		child := []string{"node", "containerd", "controlplane"}[number%3]
		if pid := pidfile.Running(pidfile.Proc, filepath.Join(s.runDir(), child+".pid")); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be ending
		}
		return child
	case 6, 7:
		return s.killAny()
	case 8:
		s.killBerth()
		s.up("--unsafe-no-fsync")
		return "berth"
	case 9:
		s.killAll()
		s.up("--unsafe-no-fsync")
		return "everything"
	case 10:
		pid := pidfile.Running(pidfile.Proc, filepath.Join(s.runDir(), "controlplane.pid"))
		if pid == 0 {
			return "no API to cut"
		}
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		time.Sleep(time.Duration(1+s.random.IntN(6)) * time.Second)
		_ = syscall.Kill(pid, syscall.SIGCONT)
		return "API cut"
	default:
		return s.fillDisk()
	}
}

// killAny kills one of all processes of the cluster, those of its Pods among them, but not the one that the user started.
func (s *soak) killAny() string {
	processes := s.processes()
	delete(processes, s.cmd.Process.Pid)
	pids := slices.Sorted(maps.Keys(processes))
	if len(pids) == 0 {
		return "none"
	}
	pid := pids[s.random.IntN(len(pids))]
	_ = syscall.Kill(pid, syscall.SIGKILL)
	return "any process"
}

// fillDisk leaves the cluster's file system without a free byte for some seconds.
func (s *soak) fillDisk() string {
	path := filepath.Join(s.disk, "full")
	file, err := os.Create(path)
	require.NoError(s.t, err)
	var offset int64
	for size := int64(soakDisk); size >= 4096; {
		if unix.Fallocate(int(file.Fd()), 0, offset, size) != nil {
			size /= 2
			continue
		}
		offset += size
	}
	time.Sleep(time.Duration(1+s.random.IntN(5)) * time.Second)
	require.NoError(s.t, errors.Join(file.Close(), os.Remove(path)))
	return "full disk"
}

// requireOrder waits until all writers write, checks what they have written, and that a new Pod with a claim starts.
func (s *soak) requireOrder(when string) {
	s.t.Helper()
	for i := range soakWriters {
		name := fmt.Sprintf("writer-%d", i)
		var err error
		require.True(s.t, s.waitLong(func() bool {
			var out string
			out, err = s.cluster.run("kubectl", "exec", name, "--", "/bin/busybox", "sh", "-c", "sync /data/numbers && cat /data/numbers")
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
				return false
			}
			require.NoError(s.t, checkNumbers(out), "%s: %s", when, name)
			require.True(s.t, strings.HasPrefix(out, s.written[name]), "%s: writes of %s are lost: after\n%s\nit is\n%s", when, name, s.written[name], out)
			advanced := len(out) > len(s.written[name])
			s.written[name] = out
			return advanced
		}), "%s: %s does not write: %v", when, name, err)
	}
	s.transient++
	s.apply(strings.ReplaceAll(writerManifest(s.transient), "writer-", "transient-"))
	s.waitPod(fmt.Sprintf("app=transient-%d", s.transient), "ready", isReady)
}

// waitLong waits until satisfied returns true, for longer than a container that was killed again and again waits for its next start.
func (s *soak) waitLong(satisfied func() bool) bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute+waitTimeout)
	defer cancel()
	return waitUntil(ctx, satisfied)
}

// checkNumbers checks that the text has the numbers from 1 on, one a line.
func checkNumbers(text string) error {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if strings.TrimSpace(line) != strconv.Itoa(n) {
			return fmt.Errorf("line %d is %q", n, line)
		}
	}
	return nil
}

// requireGone deletes everything but the writers, and waits until nothing of it is left.
func (s *soak) requireGone() {
	s.t.Helper()
	s.mustRun("kubectl", "delete", "volumesnapshots", "--all", "--timeout=3m")
	for _, kind := range []string{"pod", "pvc"} {
		for name := range strings.FieldsSeq(s.mustRun("kubectl", "get", kind, "-o", "name")) {
			if strings.Contains(name, "/transient-") {
				s.mustRun("kubectl", "delete", name, "--ignore-not-found", "--timeout=3m") // an earlier request may have deleted it
			}
		}
	}
	pods := strings.Fields(s.mustRun("kubectl", "get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"))
	var left []string
	require.NoError(s.t, s.poll(func(context.Context) bool {
		left = nil
		entries, err := os.ReadDir(filepath.Join(s.dataDir, "kubelet", "pods"))
		require.NoError(s.t, err)
		for _, entry := range entries {
			if !slices.Contains(pods, entry.Name()) {
				left = append(left, "directory of Pod "+entry.Name())
			}
		}
		devices, err := loopdev.New().List(func(backing string) bool { return strings.HasPrefix(backing, s.dataDir) })
		require.NoError(s.t, err)
		if len(devices) != soakWriters {
			left = append(left, fmt.Sprint("loop devices: ", devices))
		}
		for _, kind := range []string{"snapshots", "tmp"} {
			found, err := filepath.Glob(filepath.Join(s.dataDir, "disks", kind, "*"))
			require.NoError(s.t, err)
			left = append(left, found...)
		}
		return len(left) == 0
	}), "of what is gone there is left: %v", &left)
}
