//go:build vm

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// recordPowerMoments fills the directory with the log of the machine's disk and what was acknowledged.
func recordPowerMoments(t *testing.T, dir string) {
	require.NoError(t, os.MkdirAll(dir, 0o755))
	share := t.TempDir()
	copyClusterPrograms(t, share, "berth")
	require.NoError(t, os.WriteFile(filepath.Join(share, "busybox.tar"), programArchive(t, "/bin/busybox", cutsWriter), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(share, "cuts.yaml"), []byte(cutsManifest), 0o600))
	for i := range momentsImages {
		require.NoError(t, os.WriteFile(filepath.Join(share, fmt.Sprintf("image-%d.tar", i)), momentsArchive(t, i), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(share, fmt.Sprintf("pod-%d.json", i)), []byte(momentsPod(fmt.Sprintf("moment-%d", i), momentsImage(i))), 0o600))
	}
	log := filepath.Join(dir, "log")
	m := start(t, Options{
		Shares: []Share{{Dir: share, Path: clusterShare}}, Name: "node", MemoryMiB: 3072, DisksGiB: []int{momentsDisk}, WriteLog: log,
	})
	recorder := &recorder{log: log}
	output(t, m, "disk=/dev/disk/by-id/virtio-disk1 && mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $disk && mkdir -p "+clusterDir+" && mount $disk "+clusterDir+" && chmod 700 "+clusterDir+" && sync")
	require.NoError(t, recorder.add(fileSystemMade))
	enableCluster(t, m)
	untilCluster(t, m, "images import "+clusterShare+"/busybox.tar", "kubectl apply -f "+clusterShare+"/cuts.yaml",
		"kubectl wait pod/writer --for=condition=Ready --timeout=5s")
	require.NoError(t, recorder.add(podReady))

	ctx, cancel := context.WithTimeout(t.Context(), *momentsLoad)
	defer cancel()
	var working sync.WaitGroup
	for _, work := range []string{writeNumbers, makeObjects(0), removeObjects, importImages, takeSnapshots, expandVolume} {
		working.Go(func() { _ = m.Run(ctx, work, IO{Stdout: &positionWriter{to: recorder}, Stderr: t.Output()}) }) // it ends with the machine
	}
	<-ctx.Done()
	require.NoError(t, m.PowerCut())
	working.Wait()
	for _, kind := range []string{"number", "secret", "claim", "gone", "image", "ran", "snapshot", "expanded"} {
		require.True(t, slices.ContainsFunc(recorder.lines, func(a acknowledgement) bool { return strings.HasPrefix(a.Line, kind+" ") }), "nothing of the kind %s", kind)
	}
	data, err := json.Marshal(recorder.lines)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "acknowledged.json"), data, 0o600))
}

// removeObjects makes Secrets and claims and removes them, and prints the name of each that is gone.
const removeObjects = `for i in $(seq 1000); do name=gone-$i
	` + clusterBerth + `kubectl create secret generic $name --from-literal=value=$name >/dev/null && ` + clusterBerth + `kubectl delete secret $name >/dev/null && echo gone Secret/$name
	` + clusterBerth + `kubectl create -f - >/dev/null <<END && ` + clusterBerth + `kubectl delete pvc/$name --timeout=60s >/dev/null && echo gone PersistentVolumeClaim/$name
{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "$name"}, "spec": {"storageClassName": "cuts", "accessModes": ["ReadWriteOnce"],
	"resources": {"requests": {"storage": "4Mi"}}}}
END
done`

// importImages imports images, runs a Pod of every second one, and prints the name of each image that is there, and of each Pod that has run.
var importImages = fmt.Sprintf(`for i in $(seq 0 %d); do
	%[2]s images import %[3]s/image-$i.tar >/dev/null && echo image berth.dev/moment-$i:v1
	[ $((i %% 2)) = 0 ] || { %[2]s kubectl create -f %[3]s/pod-$i.json >/dev/null &&
		%[2]s kubectl wait pod/moment-$i --for=jsonpath='{.status.phase}'=Succeeded --timeout=120s >/dev/null && echo ran moment-$i; }
done`, momentsImages-1, clusterBerth, clusterShare)

// takeSnapshots takes snapshots of the volume with the numbers, and prints the name of each before it is made and when it is ready.
const takeSnapshots = `for i in $(seq 1000); do name=snap-$i
	echo snapshotting $name
	` + clusterBerth + `kubectl create -f - >/dev/null <<END && ` + clusterBerth + `kubectl wait volumesnapshot/$name --for=jsonpath='{.status.readyToUse}'=true --timeout=120s >/dev/null && echo snapshot $name
{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "$name"}, "spec": {"source": {"persistentVolumeClaimName": "disk"}}}
END
	sleep 5
done`

// expandVolume makes that volume larger, and prints its size in MiB each time.
const expandVolume = `for size in $(seq 65 1000); do
	` + clusterBerth + `kubectl patch pvc disk -p '{"spec": {"resources": {"requests": {"storage": "'$size'Mi"}}}}' >/dev/null &&
		` + clusterBerth + `kubectl wait pvc/disk --for=jsonpath='{.status.capacity.storage}'=${size}Mi --timeout=120s >/dev/null && echo expanded $size
	sleep 10
done`

// recorder keeps what the machine prints.
type recorder struct {
	log string

	mu    sync.Mutex
	lines []acknowledgement
}

func (r *recorder) add(line string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	info, err := os.Stat(r.log)
	if err != nil {
		return err
	}
	r.lines = append(r.lines, acknowledgement{Position: info.Size(), Line: line})
	return nil
}

// positionWriter passes whole lines on.
type positionWriter struct {
	to   *recorder
	rest []byte
}

// Write implements io.Writer.
func (w *positionWriter) Write(data []byte) (int, error) {
	w.rest = append(w.rest, data...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return len(data), nil
		}
		if err := w.to.add(string(line)); err != nil {
			return 0, err
		}
		w.rest = rest
	}
}
