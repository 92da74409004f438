//go:build vm

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	cuts      = flag.Int("cuts", 1, "how many times in all TestPowerCuts cuts the power of its machine")
	cutsState = flag.String("cuts-state", "", "file in which TestPowerCuts keeps its seed and how many cuts it has done, to go on there")
)

// cutsWriter is the image of the Pod.
const cutsWriter = "berth.dev/busybox:cuts"

// cutsManifest is a Pod with a disk, and a class whose volumes are made at once.
const cutsManifest = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: cuts}
provisioner: csi.berth.dev
volumeBindingMode: Immediate
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {storageClassName: berth-loop, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: disk, persistentVolumeClaim: {claimName: disk}}]
  containers:
  - {name: main, image: "` + cutsWriter + `", imagePullPolicy: Never, command: [/busybox, sleep, "1000000"], volumeMounts: [{name: disk, mountPath: /disk}]}
`

// cutsProgress is what a run that was interrupted needs to go on.
type cutsProgress struct {
	Seed uint64 `json:"seed"`
	Cuts int    `json:"cuts"`
}

// TestPowerCuts cuts the power of a machine at random moments while numbers are written to a volume, each flushed, and objects and volumes are
// made by the API of a cluster that is a service of the machine. This process, which keeps its power, records what was acknowledged. After
// each cut the cluster comes up with the machine and the Pod runs again without a person; everything that was acknowledged is there, and no
// file system has an error.
func TestPowerCuts(t *testing.T) {
	progress := loadCuts(t)
	t.Logf("seed %d, %d cuts done before", progress.Seed, progress.Cuts)
	m := startCutsMachine(t)
	acknowledged := &acknowledgements{}
	for ; progress.Cuts < *cuts; progress.Cuts++ {
		random := rand.New(rand.NewPCG(progress.Seed, uint64(progress.Cuts)))
		before := acknowledged.count()
		var working sync.WaitGroup
		for _, work := range []string{writeNumbers, makeObjects(progress.Cuts)} {
			working.Go(func() { _ = m.Run(t.Context(), work, IO{Stdout: &lineWriter{to: acknowledged}}) }) // it ends with the machine
		}
		require.Eventually(t, func() bool { return acknowledged.has(before, "number ") && acknowledged.has(before, "claim ") }, 15*time.Minute, 100*time.Millisecond,
			"nothing is acknowledged")
		time.Sleep(time.Duration(random.IntN(20_000)) * time.Millisecond) // a random moment is what this is about
		require.NoError(t, m.PowerCut())
		working.Wait()
		began := time.Now()
		require.NoError(t, m.Boot(t.Context()))
		waitFor(t, m, clusterStart, clusterBerth+"kubectl exec writer -- /busybox true")
		up := time.Since(began).Round(time.Second)
		requireAcknowledged(t, m, acknowledged)
		require.Empty(t, output(t, m, "dmesg | grep -E 'EXT4-fs.*(error|corrupt)|I/O error' || true"))
		t.Logf("cut %d: %d acknowledged, up after %s", progress.Cuts+1, acknowledged.count(), up)
		progress.save(t, progress.Cuts+1)
	}
	output(t, m, clusterBerth+"kubectl delete pod --all --timeout=10m && systemctl stop berth")
	for disk := range strings.FieldsSeq(output(t, m, "echo "+clusterDir+"/disks/volumes/*/disk.img")) {
		output(t, m, "[ \"$(blkid -o value -s TYPE "+disk+")\" = \"\" ] || e2fsck -f -n "+disk) // a claim that no Pod has used has no file system
	}
}

func loadCuts(t *testing.T) cutsProgress {
	t.Helper()
	progress := cutsProgress{Seed: uint64(time.Now().UnixNano())}
	if data, err := os.ReadFile(*cutsState); err == nil {
		require.NoError(t, json.Unmarshal(data, &progress), *cutsState)
	}
	return progress
}

func (p cutsProgress) save(t *testing.T, done int) {
	t.Helper()
	if *cutsState == "" {
		return
	}
	p.Cuts = done
	data, err := json.Marshal(p)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*cutsState, data, 0o600))
}

// startCutsMachine boots the machine, and starts the cluster and the Pod.
func startCutsMachine(t *testing.T) *Machine {
	t.Helper()
	share := t.TempDir()
	copyClusterPrograms(t, share, "berth")
	require.NoError(t, os.WriteFile(filepath.Join(share, "busybox.tar"), programArchive(t, "/bin/busybox", cutsWriter), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(share, "cuts.yaml"), []byte(cutsManifest), 0o600))
	m := startCluster(t, share, 3072)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.Output(context.WithoutCancel(t.Context()), clusterBerth+"explain pod writer; journalctl --no-pager -b -u berth -n 60"))
		}
	})
	untilCluster(t, m, "images import "+clusterShare+"/busybox.tar", "kubectl apply -f "+clusterShare+"/cuts.yaml",
		"kubectl wait pod/writer --for=condition=Ready --timeout=5s")
	return m
}

// writeNumbers writes one number after the other to the volume, and prints each when it is flushed.
const writeNumbers = clusterBerth + `kubectl exec writer -- /busybox sh -c 'n=$(/busybox tail -n 1 /disk/numbers 2>/dev/null)
while :; do n=$((n+1)); echo $n >> /disk/numbers && /busybox sync /disk/numbers && echo number $n; /busybox sleep 0.1; done'`

// makeObjects makes Secrets, and claims with their volumes, and prints the name of each that is there.
func makeObjects(round int) string {
	return fmt.Sprintf(`for i in $(seq 1000); do name=r%d-$i
		%[2]s kubectl create secret generic $name --from-literal=value=$name >/dev/null && echo secret $name
		%[2]s kubectl create -f - >/dev/null <<END && %[2]s kubectl wait pvc/$name --for=jsonpath='{.status.phase}'=Bound --timeout=60s >/dev/null && echo claim $name
{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "$name"}, "spec": {"storageClassName": "cuts", "accessModes": ["ReadWriteOnce"],
	"resources": {"requests": {"storage": "4Mi"}}}}
END
	done`, round, clusterBerth)
}

// acknowledgements are the lines that the machine has printed.
type acknowledgements struct {
	mu  sync.Mutex
	all []string
}

// lineWriter passes whole lines on: a power cut may cut the last one off.
type lineWriter struct {
	to   *acknowledgements
	rest []byte
}

// Write implements io.Writer.
func (w *lineWriter) Write(data []byte) (int, error) {
	w.rest = append(w.rest, data...)
	w.to.mu.Lock()
	defer w.to.mu.Unlock()
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return len(data), nil
		}
		w.to.all, w.rest = append(w.to.all, string(line)), rest
	}
}

func (a *acknowledgements) lines() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

func (a *acknowledgements) count() int { return len(a.lines()) }

// has reports whether a line after the first ones begins with the text.
func (a *acknowledgements) has(after int, beginning string) bool {
	return slices.ContainsFunc(a.lines()[after:], func(line string) bool { return strings.HasPrefix(line, beginning) })
}

// requireAcknowledged compares what the cluster has with what was acknowledged.
func requireAcknowledged(t *testing.T, m *Machine, acknowledged *acknowledgements) {
	t.Helper()
	clusterContent{
		numbers: strings.Fields(output(t, m, clusterBerth+"kubectl exec writer -- /busybox cat /disk/numbers")),
		objects: strings.Fields(output(t, m, clusterBerth+"kubectl get secrets,pvc -o '"+objectsTemplate+"'")),
		volumes: strings.Fields(output(t, m, "ls "+clusterDir+"/disks/volumes")),
	}.requireAll(t, acknowledged.lines())
}

// objectsTemplate lets kubectl print KIND/NAME/PHASE of objects.
const objectsTemplate = `go-template={{range .items}}{{.kind}}/{{.metadata.name}}/{{with .status.phase}}{{.}}{{end}} {{end}}`

// clusterContent is what a cluster has after a power cut.
type clusterContent struct {
	// numbers are those in the volume, objects as objectsTemplate prints them, volumes and images their names.
	numbers, objects, volumes, images []string
	// sizeMiB is the size of the volume with the numbers.
	sizeMiB int
}

// requireConsecutive requires the numbers from 1 on.
func requireConsecutive(t *testing.T, numbers []string) {
	t.Helper()
	for i, number := range numbers {
		require.Equal(t, strconv.Itoa(i+1), number, "the numbers of the volume: %v", numbers)
	}
}

// requireAll requires everything that the lines acknowledge, and nothing that they say is gone.
func (c clusterContent) requireAll(t *testing.T, lines []string) {
	t.Helper()
	requireConsecutive(t, c.numbers)
	bound := 0
	for _, line := range lines {
		kind, name, _ := strings.Cut(line, " ")
		switch kind {
		case "number":
			number, err := strconv.Atoi(name)
			require.NoError(t, err, line)
			require.LessOrEqual(t, number, len(c.numbers), "a number that was flushed is lost")
		case "secret":
			require.Contains(t, c.objects, "Secret/"+name+"/")
		case "claim":
			bound++
			require.Contains(t, c.objects, "PersistentVolumeClaim/"+name+"/Bound")
		case "gone":
			require.False(t, slices.ContainsFunc(c.objects, func(object string) bool { return strings.HasPrefix(object, name+"/") }), "%s exists again", name)
		case "image":
			require.Contains(t, c.images, name)
		case "ran":
			require.Contains(t, c.objects, "Pod/"+name+"/Succeeded")
		case "snapshot":
			require.Contains(t, c.objects, "VolumeSnapshot/"+name+"/true")
		case "expanded":
			size, err := strconv.Atoi(name)
			require.NoError(t, err, line)
			require.GreaterOrEqual(t, c.sizeMiB, size, "the volume is smaller than it was")
		}
	}
	require.GreaterOrEqual(t, len(c.volumes), bound+1, "a volume that was acknowledged is lost")
}
