//go:build vm

package vm

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// iscsiIQN is the name of a target with five disks that anybody may use, chapIQN of one that wants a password, and has one.
	iscsiIQN, chapIQN = "iqn.2003-01.dev.berth:disks", "iqn.2003-01.dev.berth:secret"
	// iscsiLeft prints what there is of sessions, disks and their records.
	iscsiLeft = "iscsiadm -m session 2>&1; iscsiadm -m node 2>&1; ls /sys/class/scsi_disk; ls " + clusterDir + "/kubelet/plugins/kubernetes.io/iscsi/*"
)

// iscsiTarget makes a target of the kernel, with its disks in files, at two addresses of the machine.
const iscsiTarget = `set -e
modprobe -a target_core_mod target_core_file iscsi_target_mod
mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
cd /sys/kernel/config/target
target() {
	mkdir -p iscsi/$1/tpgt_1/np/127.0.0.1:3260 iscsi/$1/tpgt_1/np/127.0.0.2:3260
	for lun in $2; do
		disk=core/fileio_$lun/disk$lun file=/srv/disk$lun
		[ -f $file ] || truncate -s 64M $file
		mkdir -p $disk iscsi/$1/tpgt_1/lun/lun_$lun
		echo fd_dev_name=$file,fd_dev_size=67108864 > $disk/control
		echo disk$lun > $disk/wwn/vpd_unit_serial
		echo 1 > $disk/enable
		ln -s $PWD/$disk iscsi/$1/tpgt_1/lun/lun_$lun/disk
	done
	for setting in generate_node_acls=1 cache_dynamic_acls=1 demo_mode_write_protect=0 authentication=$3; do
		echo ${setting#*=} > iscsi/$1/tpgt_1/attrib/${setting%%=*}
	done
}
target ` + iscsiIQN + ` "0 1 2 3 4" 0
target ` + chapIQN + ` "5" 1
printf user > iscsi/` + chapIQN + `/tpgt_1/auth/userid
printf password1234 > iscsi/` + chapIQN + `/tpgt_1/auth/password
for target in ` + iscsiIQN + ` ` + chapIQN + `; do echo 1 > iscsi/$target/tpgt_1/enable; done
`

func iscsiSource(lun int, more string) string {
	return fmt.Sprintf("iscsi: {targetPortal: 127.0.0.1, iqn: %q, lun: %d%s}", iscsiIQN, lun, more)
}

func iscsiClaim(name, source, more string) string {
	return `
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: ` + name + `}
spec: {storageClassName: "", accessModes: [ReadWriteOnce], capacity: {storage: 64Mi}, ` + source + more + `}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: ` + name + `}
spec: {storageClassName: "", volumeName: ` + name + `, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}` + more + `}
`
}

const chapSecret = `
---
apiVersion: v1
kind: Secret
metadata: {name: chap}
type: kubernetes.io/iscsi-chap
stringData: {node.session.auth.username: user, node.session.auth.password: password1234}
`

// TestISCSI runs Pods with disks of a real target: in the Pod and by claims, as devices, with a password, by an initiator of its own name, by
// two paths; over a restart of the node's process and a power cut of the machine. In the end nothing is left of sessions and disks, and the
// data is on the target.
func TestISCSI(t *testing.T) {
	c := startPodCluster(t, iscsiLeft)
	output(t, c.Machine, iscsiTarget)
	output(t, c.Machine, "printf 'defaults {\n find_multipaths yes\n}\n' > /etc/multipath.conf; systemctl start multipathd")
	claim := func(name string) string { return "persistentVolumeClaim: {claimName: " + name + "}" }
	manifest := chapSecret +
		iscsiClaim("shared", iscsiSource(1, ""), "") +
		iscsiClaim("device", iscsiSource(2, ""), ", volumeMode: Block") +
		iscsiClaim("secret", fmt.Sprintf("iscsi: {targetPortal: 127.0.0.1, iqn: %q, lun: 5, chapAuthSession: true, secretRef: {name: chap, namespace: default}}",
			chapIQN), "") +
		iscsiClaim("named", iscsiSource(3, ", initiatorName: \"iqn.2003-01.dev.berth:own\""), "") +
		volumePod("inline", iscsiSource(0, `, portals: ["127.0.0.2:3260"]`)) +
		volumePod("first", claim("shared")) + volumePod("second", claim("shared")) +
		volumePodWith("device", claim("device"), "volumeDevices: [{name: share, devicePath: /dev/share}]") +
		volumePod("secret", claim("secret")) + volumePod("named", claim("named"))
	pods := "pod/inline pod/first pod/second pod/device pod/secret pod/named"
	began := time.Now()
	c.apply(t, manifest)
	c.ready(t, pods)
	t.Logf("six Pods started after %s", time.Since(began).Round(time.Second))
	for _, pod := range []string{"inline", "first", "secret", "named"} {
		c.inPod(t, pod, "echo "+pod+" > /share/file && /busybox sync /share/file")
	}
	require.Equal(t, "first", c.inPod(t, "second", "/busybox cat /share/file"))
	c.inPod(t, "device", "echo raw | /busybox dd of=/dev/share conv=fsync 2>/dev/null")
	require.Equal(t, "raw", output(t, c.Machine, "head -c 3 /srv/disk2"))
	require.Contains(t, output(t, c.Machine, "grep kubernetes.io~iscsi/share /proc/mounts"), "/dev/mapper/", "two paths are used as one")
	t.Log(output(t, c.Machine, iscsiLeft))

	t.Run("a disk that the target does not have", func(t *testing.T) {
		// By a claim: the scheduler does not let two Pods on a node have disks of one target without.
		c.apply(t, iscsiClaim("none", iscsiSource(77, ""), "")+volumePod("none", claim("none")))
		waitFor(t, c.Machine, 300, clusterBerth+"explain pod none | grep -F 'no disk with the number 77'")
		t.Log(c.berth(t, "explain pod none"))
		c.berth(t, "kubectl delete pod none --timeout=5m")
	})
	t.Run("the node's process restarts", func(t *testing.T) {
		output(t, c.Machine, "pkill -KILL -f 'berth node-process'")
		untilCluster(t, c.Machine, "kubectl exec first -- /busybox cat /share/file")
		c.berth(t, "kubectl delete pod second named --timeout=5m")
		require.Equal(t, "first", c.inPod(t, "first", "/busybox cat /share/file"), "the other Pod of the disk has it")
		require.Equal(t, "0 0 0 0", c.berth(t, "kubectl get pod first inline device secret -o jsonpath='{.items[*].status.containerStatuses[0].restartCount}'"))
		waitFor(t, c.Machine, 300, "! iscsiadm -m iface | grep ':named '")
	})
	t.Run("a power cut", func(t *testing.T) {
		require.NoError(t, c.PowerCut())
		require.NoError(t, c.Boot(t.Context()))
		output(t, c.Machine, "systemctl start multipathd")
		waitFor(t, c.Machine, clusterStart, clusterBerth+"explain pod first | grep -F "+iscsiIQN) // the target does not exist yet
		output(t, c.Machine, iscsiTarget)
		for _, pod := range []string{"inline", "first", "secret"} {
			untilCluster(t, c.Machine, "kubectl exec "+pod+" -- /busybox grep "+pod+" /share/file")
		}
		untilCluster(t, c.Machine, "kubectl exec device -- /busybox grep raw /dev/share")
	})
	c.berth(t, "kubectl delete pod --all --timeout=5m")
	waitFor(t, c.Machine, 300, "! ls -d /sys/class/iscsi_session/session* && [ -z \"$(ls /sys/class/scsi_disk)\" ]")
	require.Equal(t, "", output(t, c.Machine, "ls "+clusterDir+"/kubelet/plugins/kubernetes.io/iscsi/records; iscsiadm -m node 2>/dev/null || true"))
	require.Equal(t, "first", output(t, c.Machine, "mount -o loop,ro,noload /srv/disk1 /mnt && cat /mnt/file && umount /mnt"), "the disk keeps its files")
}
