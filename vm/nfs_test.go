//go:build vm

package vm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// nfsServer starts the kernel's NFS server, version 4 alone, with short times for clients to reclaim what they have had.
const nfsServer = `set -e
mkdir -p /srv/share
modprobe nfsd
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
exportfs -o rw,no_root_squash,insecure,no_subtree_check 127.0.0.1:/srv/share
rpc.mountd --no-nfs-version 3
` + restartNFS

const (
	stopNFS, restartNFS = "rpc.nfsd 0", "rpc.nfsd --no-nfs-version 3 --grace-time 10 --lease-time 10 4"
	// shareMounts prints where the share is mounted.
	shareMounts = "grep ' nfs4 ' /proc/mounts || true"
)

const (
	nfsInline = `nfs: {server: 127.0.0.1, path: /srv/share}`
	nfsClaim  = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: share}
spec: {storageClassName: "", accessModes: [ReadWriteMany], capacity: {storage: 1Gi}, mountOptions: [nfsvers=4.2, noatime], nfs: {server: 127.0.0.1, path: /srv/share}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: share}
spec: {storageClassName: "", volumeName: share, accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
`
)

// TestNFS runs Pods that share a directory of a real NFS server: in the Pod and by a claim, read-only, over a restart of the node's process,
// and while the server does not answer. That harms no other Pod, and those that wait for it start when it answers again.
func TestNFS(t *testing.T) {
	n := startNFSCluster(t)
	n.apply(t, nfsClaim+volumePod("inline", nfsInline)+volumePod("claim", `persistentVolumeClaim: {claimName: share}`)+
		volumePod("reader", `persistentVolumeClaim: {claimName: share, readOnly: true}`))
	n.ready(t, "pod/inline pod/claim pod/reader")
	n.inPod(t, "inline", "echo one > /share/file && /busybox sync /share/file")
	require.Equal(t, "one", output(t, n.Machine, "cat /srv/share/file"))
	require.Equal(t, "one", n.inPod(t, "claim", "/busybox cat /share/file"))
	require.Equal(t, "refused", n.inPod(t, "reader", "echo two 2>/dev/null > /share/file || echo refused"))
	require.Contains(t, output(t, n.Machine, shareMounts), "noatime", "the volume's mount options")

	t.Run("the node's process restarts", func(t *testing.T) {
		output(t, n.Machine, "pkill -KILL -f 'berth node-process'")
		untilCluster(t, n.Machine, "kubectl exec claim -- /busybox cat /share/file")
		n.berth(t, "kubectl delete pod reader --timeout=5m")
		require.Equal(t, "0 0", n.berth(t, "kubectl get pod inline claim -o jsonpath='{.items[*].status.containerStatuses[0].restartCount}'"))
		waitFor(t, n.Machine, 300, "[ $(grep -c ' nfs4 ' /proc/mounts) = 2 ]")
	})
	t.Run("the server does not answer", func(t *testing.T) {
		output(t, n.Machine, stopNFS)
		n.apply(t, volumePod("late", nfsInline)+volumePod("other", "emptyDir: {}"))
		n.ready(t, "pod/other")
		n.berth(t, "kubectl get --raw /api/v1/nodes/node/proxy/stats/summary >/dev/null")
		n.berth(t, "kubectl delete pod other --timeout=5m")
		waitFor(t, n.Machine, 600, clusterBerth+"explain pod late | grep -F 127.0.0.1:/srv/share")
		t.Log(n.berth(t, "explain pod late"))
		n.berth(t, "kubectl delete pod inline --timeout=5m")
		output(t, n.Machine, restartNFS)
		n.ready(t, "pod/late")
		require.Equal(t, "one", n.inPod(t, "late", "/busybox cat /share/file"))
		require.Equal(t, "one", n.inPod(t, "claim", "/busybox cat /share/file"))
	})
	t.Run("the cluster restarts without the server", func(t *testing.T) {
		output(t, n.Machine, stopNFS)
		output(t, n.Machine, "systemctl restart berth")
		untilCluster(t, n.Machine, "kubectl exec claim -- /busybox true")
		output(t, n.Machine, restartNFS)
		waitFor(t, n.Machine, 300, clusterBerth+"kubectl exec claim -- /busybox grep one /share/file")
	})
	n.berth(t, "kubectl delete pod --all --timeout=5m")
	waitFor(t, n.Machine, 300, "! grep ' nfs4 ' /proc/mounts")
	require.Equal(t, "one", output(t, n.Machine, "cat /srv/share/file"), "the share keeps its files")
}

// startNFSCluster boots a machine that has an NFS server and a cluster.
func startNFSCluster(t *testing.T) podCluster {
	t.Helper()
	c := startPodCluster(t, shareMounts)
	output(t, c.Machine, nfsServer)
	return c
}
