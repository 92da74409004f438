//go:build vm

package vm

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// podImage is the image of the Pods of a podCluster.
const podImage = "berth.dev/busybox:pods"

// podCluster is a machine with a cluster that has podImage.
type podCluster struct{ *Machine }

// startPodCluster boots the machine. A test that fails logs what the command prints.
func startPodCluster(t *testing.T, onFailure string) podCluster {
	t.Helper()
	share := t.TempDir()
	copyClusterPrograms(t, share, "berth")
	require.NoError(t, os.WriteFile(filepath.Join(share, "busybox.tar"), programArchive(t, "/bin/busybox", podImage), 0o600))
	m := startCluster(t, share, 3072)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.Output(context.WithoutCancel(t.Context()), clusterBerth+"kubectl get pods -o wide; "+onFailure+
				"; tail -n 40 "+clusterDir+"/log/berth.log; journalctl --no-pager -b -u berth -n 80; dmesg | tail -n 20"))
		}
	})
	untilCluster(t, m, "images import "+clusterShare+"/busybox.tar")
	return podCluster{m}
}

// volumePod is the manifest of a Pod that has a volume at /share.
func volumePod(name, volume string) string {
	return volumePodWith(name, volume, "volumeMounts: [{name: share, mountPath: /share}]")
}

// volumePodWith is that of one whose container has the volume in another way.
func volumePodWith(name, volume, use string) string {
	return `
---
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: share, ` + volume + `}]
  containers:
  - {name: main, image: "` + podImage + `", imagePullPolicy: Never, command: [/busybox, sleep, "1000000"], ` + use + `}
`
}

func (c podCluster) berth(t *testing.T, command string) string {
	t.Helper()
	return output(t, c.Machine, clusterBerth+command)
}

// apply creates objects once the cluster can.
func (c podCluster) apply(t *testing.T, manifest string) {
	t.Helper()
	untilCluster(t, c.Machine, "kubectl apply -f - <<'END'\n"+manifest+"\nEND\n")
}

func (c podCluster) inPod(t *testing.T, pod, script string) string {
	t.Helper()
	return c.berth(t, "kubectl exec "+pod+" -- /busybox sh -c "+quote(script))
}

func (c podCluster) ready(t *testing.T, pods string) {
	t.Helper()
	untilCluster(t, c.Machine, "kubectl wait --for=condition=Ready --timeout=5s "+pods)
}
