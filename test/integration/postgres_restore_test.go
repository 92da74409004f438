//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// restoredManifest is a PostgreSQL on a volume that is created from a snapshot. It must have a database: the script of the StatefulSet would make one.
const restoredManifest = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME}
spec:
  storageClassName: berth-loop
  accessModes: [ReadWriteOncePod]
  resources: {requests: {storage: SIZE}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: NAME}
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  securityContext: {runAsUser: 101, runAsGroup: 101, fsGroup: 101, fsGroupChangePolicy: OnRootMismatch}
  volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}, {name: scripts, configMap: {name: pg}}]
  containers:
  - name: postgres
    image: example.test/debian:v1
    imagePullPolicy: Never
    command: [sh, -c, 'test -s $PGDATA/PG_VERSION && exec sh /scripts/start.sh']
    env: [{name: PGDATA, value: /data/pgdata}, {name: POD, value: NAME}]
    lifecycle: {preStop: {exec: {command: [sh, -c, kill -INT 1]}}}
    volumeMounts: [{name: data, mountPath: /data}, {name: scripts, mountPath: /scripts}]
`

const snapshotManifest = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: NAME}
spec: {source: {persistentVolumeClaimName: data-pg-0}}
`

// persistApply gives a manifest to kubectl until that succeeds.
func (p *postgresCluster) persistApply(manifest string) error {
	path := filepath.Join(p.t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		return err
	}
	_, err := p.persist("kubectl", "apply", "-f", path)
	return err
}

// copyAndRestore takes a snapshot, if the round has one, and checks a PostgreSQL on a volume that is created from it, while faults happen.
func (w *postgresChaos) copyAndRestore(r postgresRound) error {
	if !r.snapshot {
		return nil
	}
	time.Sleep(r.snapshotAfter) // a random moment is what this is about
	name := fmt.Sprintf("copy-%d", r.number)
	before := w.acknowledged()
	if err := w.persistApply(strings.ReplaceAll(snapshotManifest, "NAME", name)); err != nil {
		return err
	}
	if err := w.waitSnapshot(name); err != nil {
		return err
	}
	size, err := w.persist("kubectl", "get", "volumesnapshot", name, "-o", "jsonpath={.status.restoreSize}")
	if err != nil {
		return err
	}
	if err := w.persistApply(strings.NewReplacer("NAME", name, "SIZE", size).Replace(restoredManifest)); err != nil {
		return err
	}
	if err := w.check(w.podAddress(name), before); err != nil {
		return fmt.Errorf("the database of snapshot %s with %d commits: %w", name, before, errors.Join(err, w.describe(name)))
	}
	w.restored++
	return w.removeCopy(name)
}

func (w *postgresChaos) waitSnapshot(name string) error {
	var out string
	err := w.poll(func(context.Context) bool {
		out, _ = w.run("kubectl", "get", "volumesnapshot", name, "-o", "jsonpath={.status.readyToUse} {.status.error.message}")
		return strings.HasPrefix(out, "true")
	})
	if err != nil {
		return fmt.Errorf("snapshot %s is not ready: %s: %w", name, out, err)
	}
	return nil
}

// podAddress returns the function that returns a Pod's address, empty while it has none.
func (p *postgresCluster) podAddress(name string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		return p.run("kubectl", "get", "pod", name, "-o", "jsonpath={.status.podIP}")
	}
}

// describe returns what is known about a Pod that does not work.
func (p *postgresCluster) describe(pod string) error {
	explained, _ := p.run("explain", "pod", pod)
	logs, _ := p.run("kubectl", "logs", pod, "--tail=30")
	return fmt.Errorf("%s\n%s", explained, logs)
}

// removeCopy removes a restored database with its snapshot, and checks the disks of both.
func (w *postgresChaos) removeCopy(name string) error {
	image, err := w.findImage(name)
	if err != nil {
		return err
	}
	snapshot, err := w.persist("kubectl", "get", "volumesnapshotcontents", "-o",
		`jsonpath={.items[?(@.spec.volumeSnapshotRef.name=="`+name+`")].status.snapshotHandle}`)
	if err != nil {
		return err
	}
	if _, err := w.persist("kubectl", "delete", "pod", name, "--ignore-not-found", "--timeout=2m"); err != nil {
		return err
	}
	if err := errors.Join(w.checkDisk(image), fsck(filepath.Join(w.dataDir, "disks", "snapshots", snapshot, "disk.img"))); err != nil {
		return fmt.Errorf("copy %s: %w", name, err)
	}
	_, err = w.persist("kubectl", "delete", "pvc/"+name, "volumesnapshot/"+name, "--ignore-not-found", "--timeout=2m")
	return err
}

// findImage returns the image file of the claim's disk.
func (p *postgresCluster) findImage(claim string) (string, error) {
	volume, err := p.persist("kubectl", "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	if err != nil {
		return "", err
	}
	handle, err := p.persist("kubectl", "get", "pv", volume, "-o", "jsonpath={.spec.csi.volumeHandle}")
	return filepath.Join(p.dataDir, "disks", "volumes", handle, "disk.img"), err
}

func (p *postgresCluster) imageOf(claim string) string {
	p.t.Helper()
	image, err := p.findImage(claim)
	require.NoError(p.t, err)
	return image
}

// checkDisk checks a disk whose Pod is gone, as soon as it is detached.
func (p *postgresCluster) checkDisk(image string) error {
	if err := p.poll(func(context.Context) bool { return !isAttached(image) }); err != nil {
		return fmt.Errorf("%s is still attached: %w", image, err)
	}
	return fsck(image)
}

// isAttached reports whether a loop device has the image.
func isAttached(image string) bool {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		if backing, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(backing)) == image {
			return true
		}
	}
	return false
}

// fsck checks the file system of an image, which must be clean without its journal.
func fsck(image string) error {
	if out, err := exec.Command("e2fsck", "-f", "-n", image).CombinedOutput(); err != nil {
		return fmt.Errorf("e2fsck of %s: %w: %s", image, err, out)
	}
	return nil
}

// expand requests more storage for the claim, if the round does, while faults happen.
func (w *postgresChaos) expand(r postgresRound) error {
	if !r.expand {
		return nil
	}
	time.Sleep(r.expandAfter) // a random moment is what this is about
	w.size += expandBy
	w.expansions++
	_, err := w.persist("kubectl", "patch", "pvc", postgresClaim, "-p", fmt.Sprintf(`{"spec": {"resources": {"requests": {"storage": "%dMi"}}}}`, w.size))
	return err
}

// requireOnlyDatabase checks that nothing is left of the copies.
func (w *postgresChaos) requireOnlyDatabase(when string) {
	w.t.Helper()
	var left []string
	require.NoError(w.t, w.poll(func(context.Context) bool {
		left = nil
		volumes, _ := filepath.Glob(filepath.Join(w.dataDir, "disks", "volumes", "*"))
		snapshots, _ := filepath.Glob(filepath.Join(w.dataDir, "disks", "snapshots", "*"))
		if left = append(volumes, snapshots...); len(volumes) == 1 {
			left = snapshots
		}
		left = append(left, w.loopDevices()...)
		for _, dir := range []string{"pods", "plugins"} {
			left = append(left, mountsBelow(w.t, filepath.Join(w.dataDir, "kubelet", dir))...)
		}
		out, err := w.run("kubectl", "get", "pods,volumeattachments,volumesnapshots,volumesnapshotcontents", "-o", "name")
		if err != nil || strings.TrimSpace(out) != "" && !strings.HasPrefix(out, "No resources") {
			left = append(left, out)
		}
		return len(left) == 0
	}), "%s, while the database rests, there is left: %v", when, left)
}
