//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const sharedDriver = "shared.berth.dev"

// sharedDisks are disks that every machine of a cluster reaches: the driver's controller with our provisioner and
// attacher on the cluster's own node, and a driver on each machine.
type sharedDisks struct {
	c    *cluster
	root string
	run  string
	logs string
}

func newSharedDisks(t testing.TB, c *cluster) *sharedDisks {
	t.Helper()
	run := runDir(t, "berth-d")
	s := &sharedDisks{c: c, root: filepath.Join(t.TempDir(), "disks"), run: run, logs: t.TempDir()}
	t.Cleanup(func() { freeDisks(s.root) })
	c.startBeside(s.log("driver"), s.driver(homeNode, filepath.Join(run, "csi.sock"),
		filepath.Join(c.dataDir, "kubelet", "plugins_registry"))...)
	c.startBeside(s.log("controllers"), c.berth, "controllers", "--kubeconfig", filepath.Join(c.dataDir, "admin.kubeconfig"),
		"--leader-election=false", "--csi-driver", sharedDriver+"="+filepath.Join(run, "csi.sock"), "--socket", s.records())
	c.class("shared", sharedDriver)
	return s
}

// class creates the CSIDriver of a driver that attaches, and a storage class of its disks.
func (c *cluster) class(name, driver string) {
	c.t.Helper()
	c.apply(`{"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "` + driver + `"},
		"spec": {"attachRequired": true, "fsGroupPolicy": "File"}}`)
	c.apply(`{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "` + name + `"},
		"provisioner": "` + driver + `", "allowVolumeExpansion": true, "parameters": {"csi.storage.k8s.io/fstype": "ext4"}}`)
}

func (s *sharedDisks) driver(node, socket, registry string, more ...string) []string {
	return append([]string{s.c.berth, "csi-driver", "--name", sharedDriver, "--shared", "--root", s.root, "--node-id", node,
		"--endpoint", socket, "--plugins-registry", registry}, more...)
}

// nodeDriver is the driver of a machine.
func (s *sharedDisks) nodeDriver(m *machine) []string {
	return s.driver(m.name, filepath.Join(m.run, "csi.sock"), m.registry(), "--node-only")
}

// startBeside runs a program beside the cluster until the test ends; what it prints goes into the file.
func (c *cluster) startBeside(output string, argv ...string) {
	c.t.Helper()
	log, err := os.Create(output)
	require.NoError(c.t, err)
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(c.t, cmd.Start())
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended, which the test has noticed
		late := time.AfterFunc(waitTimeout, func() {
			c.t.Errorf("%s did not end after SIGTERM", filepath.Base(argv[0]))
			_ = cmd.Process.Kill()
		})
		_ = cmd.Wait()
		late.Stop()
		if c.t.Failed() {
			data, _ := os.ReadFile(output)
			c.t.Logf("end of %s:\n%s", filepath.Base(output), data[max(0, len(data)-logTailBytes):])
		}
	})
}

// records is the socket of the controllers' timeline.
func (s *sharedDisks) records() string { return filepath.Join(s.run, "berth.sock") }

func (s *sharedDisks) log(name string) string { return filepath.Join(s.logs, name+".log") }

// freeDisks detaches the disks in the directory, which killed machines leave attached.
func freeDisks(root string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		if image, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(image), root) {
			_ = exec.Command("losetup", "--detach", "/dev/"+strings.Split(file, "/")[3]).Run()
		}
	}
}

var publicationLine = regexp.MustCompile(`msg="(published|unpublished|refused to publish) volume" volume=(\S+) node=(\S+)`)

// publicationHistory checks the requests to the driver: no volume was ever requested on two nodes at once. It returns the
// nodes of each volume in their order. Publishing a volume again to the node that lost it is no move.
func (s *sharedDisks) publicationHistory() map[string][]string {
	s.c.t.Helper()
	data, err := os.ReadFile(s.log("driver"))
	require.NoError(s.c.t, err)
	at, history := make(map[string]string), make(map[string][]string)
	for _, line := range publicationLine.FindAllStringSubmatch(string(data), -1) {
		what, volume, node := line[1], line[2], line[3]
		switch what {
		case "published":
			before := at[volume]
			require.Contains(s.c.t, []string{"", node}, before, "volume %s was published to %s as well:\n%s", volume, node, data)
			if at[volume] = node; before == "" {
				history[volume] = append(history[volume], node)
			}
		case "unpublished":
			require.Equal(s.c.t, node, at[volume], "volume %s:\n%s", volume, data)
			delete(at, volume)
		default:
			s.c.t.Fatalf("volume %s was requested on %s while it was on %s:\n%s", volume, node, at[volume], data)
		}
	}
	return history
}

// followerManifest is a Pod, kept by a Deployment, that prefers a node, with a disk to which it adds the names of its nodes.
const followerManifest = `{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "NAME"}, "spec": {"storageClassName": "shared",
	"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}},
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "NAME"}, "spec": {"replicas": 1,
	"selector": {"matchLabels": {"name": "NAME"}}, "template": {"metadata": {"labels": {"name": "NAME"}}, "spec": {
	"terminationGracePeriodSeconds": 1, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "NAME"}}],
	"tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1},
		{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}],
	"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {
		"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["NODE"]}]}}]}},
	"containers": [CONTAINER]}}}}]}`

func (c *cluster) deployFollower(name, node string) {
	c.t.Helper()
	container := shell("echo $NODE >> /disk/trail && sync && exec sleep 100000", `"name": "main",
		"env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
		"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`)
	c.apply(strings.NewReplacer("NAME", name, "NODE\"]", node+"\"]", "CONTAINER", container).Replace(followerManifest))
}

// waitFollower waits until the follower runs on a node that satisfies, and returns its Pod.
func (c *cluster) waitFollower(name, what string, satisfies func(node string) bool) *corev1.Pod {
	c.t.Helper()
	return c.waitPod("name="+name, what, func(pod *corev1.Pod) bool { return isReady(pod) && satisfies(pod.Spec.NodeName) })
}

// volumeOf is the driver's name of the claim's volume.
func (c *cluster) volumeOf(claim string) string {
	c.t.Helper()
	return c.mustRun("kubectl", "get", "pv", c.mustRun("kubectl", "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}"),
		"-o", "jsonpath={.spec.csi.volumeHandle}")
}

// trail returns the nodes on the follower's disk, as its Pod reads them.
func (c *cluster) trail(pod *corev1.Pod) []string {
	c.t.Helper()
	return strings.Fields(c.mustRun("kubectl", "exec", pod.Name, "--", "/bin/busybox", "cat", "/disk/trail"))
}

func nodeReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// TestVolumesFollowTheirPods has Pods with attached volumes leave nodes that are drained, lose their power, are deleted
// and are cut off, on a cluster of four nodes. The driver's log proves it.
func TestVolumesFollowTheirPods(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	disks := newSharedDisks(t, c)
	machines := make([]*machine, 3)
	for i := range machines {
		machines[i] = newMachine(t, c, i+1)
		machines[i].start(disks.nodeDriver)
	}
	for _, m := range machines {
		c.approve(m.name)
		c.waitNode(m.name, "ready", nodeReady)
		c.waitRegistered(m.name, sharedDriver)
	}
	c.waitRegistered(homeNode, sharedDriver)
	t.Run("drained", func(t *testing.T) { disks.checkDrain(t, machines[0]) })

	// The storage loses a publication. The attacher's next verification, within a minute, repairs that.
	c.deployFollower("lost-publication", homeNode)
	c.waitFollower("lost-publication", "on "+homeNode, is(homeNode))
	publication := filepath.Join(disks.root, "volumes", c.volumeOf("lost-publication"), "published.json")
	require.NoError(t, os.Remove(publication))
	disks.loseMachines(machines[0], machines[1], machines[2])
	require.NoError(t, c.poll(func(context.Context) bool {
		_, err := os.Stat(publication)
		return err == nil
	}), "the lost publication must be repeated")
	disks.checkNothingLeft()
}

// checkDrain has a Pod's volume leave a machine that is drained. Before that, the machine and the controllers report their
// stages on their own sockets, with those that only the API has.
func (s *sharedDisks) checkDrain(t *testing.T, m *machine) {
	c := s.c
	c.deployFollower("drained", m.name)
	first := c.waitFollower("drained", "on "+m.name, is(m.name))
	node := c.mustRun("explain", "pod", first.Name, "--socket", m.records())
	for _, stage := range []string{"Accepted", "Scheduled", "SeenByKubelet", "StartContainer", "Ready"} {
		require.Contains(t, node, "\n  "+stage, "what %s has recorded", m.name)
	}
	claim := c.mustRun("explain", "pvc", "drained", "--socket", s.records())
	for _, stage := range []string{"Accepted", "Provisioning", "SavingVolume"} {
		require.Contains(t, claim, "claim: "+stage, "what the controllers have recorded")
	}

	c.mustRun("kubectl", "drain", m.name, "--force", "--timeout=2m")
	pod := c.waitFollower("drained", "elsewhere", not(m.name))
	require.Equal(t, []string{m.name, pod.Spec.NodeName}, c.trail(pod))
	require.Equal(t, []string{m.name, pod.Spec.NodeName}, s.publicationHistory()[c.volumeOf("drained")])
	require.Empty(t, forcedDetaches(t, c), "a drain needs no force")
	c.mustRun("kubectl", "delete", "deployment,pvc", "drained", "--timeout=2m")
	c.mustRun("kubectl", "uncordon", m.name)
}

// loseMachines kills one machine, deletes the Node of another, and cuts the third off. The control plane takes 50 s to
// notice, for all of them together.
func (s *sharedDisks) loseMachines(powerless, deleted, cut *machine) {
	c, t := s.c, s.c.t
	lost := []*machine{powerless, deleted, cut}
	for _, m := range lost {
		c.deployFollower("of-"+m.name, m.name)
	}
	before := make(map[string]types.UID)
	for _, m := range lost {
		before[m.name] = c.waitFollower("of-"+m.name, "on "+m.name, is(m.name)).UID
		c.mustRun("kubectl", "cordon", m.name)
	}
	powerless.kill()
	powerless.unmount()
	c.mustRun("kubectl", "taint", "node", powerless.name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	deleted.kill()
	deleted.unmount()
	c.mustRun("kubectl", "delete", "node", deleted.name)
	cut.cutLink()
	s.checkVolumeHeld(cut, before[cut.name])
	c.mustRun("kubectl", "taint", "node", cut.name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")

	for _, m := range lost {
		pod := c.waitFollower("of-"+m.name, "away from "+m.name, not(m.name))
		require.Equal(t, []string{m.name, pod.Spec.NodeName}, c.trail(pod))
		require.Equal(t, []string{m.name, pod.Spec.NodeName}, s.publicationHistory()[c.volumeOf("of-"+m.name)])
	}
	for _, m := range []*machine{powerless, cut} {
		c.waitEvents(metav1.NamespaceAll, m.name, "ForcedDetachVolume: ") // the assumption must be reported on the node
	}
	require.NotContains(t, forcedDetaches(t, c), "Node "+deleted.name, "a deleted node has nothing mounted")
	cut.rejoin()
}

// checkVolumeHeld waits until a machine that is cut off is lost. It may still work, so the volume stays attached until an
// administrator says that it does not.
func (s *sharedDisks) checkVolumeHeld(cut *machine, before types.UID) {
	c, t := s.c, s.c.t
	c.waitNode(cut.name, "lost", func(node *corev1.Node) bool { return !nodeReady(node) })
	waiting := c.waitPod("name=of-"+cut.name, "waiting for its volume", func(pod *corev1.Pod) bool {
		return pod.UID != before && pod.Spec.NodeName != ""
	})
	require.NoError(t, c.poll(func(context.Context) bool {
		out, err := c.run("explain", "pod", waiting.Name)
		return err == nil && strings.Contains(out, fmt.Sprintf("attached to node %q since", cut.name)) &&
			strings.Contains(out, "it is released when")
	}), "explain must name the holder of the volume, since when, and what it waits for")
	require.NotEqual(t, cut.name, waiting.Spec.NodeName)
	require.Equal(t, []string{cut.name}, s.publicationHistory()[c.volumeOf("of-"+cut.name)])
}

// rejoin restores the link of the machine, which must release what it must not use any more.
func (m *machine) rejoin() {
	m.restoreLink()
	m.c.waitNode(m.name, "back", nodeReady)
	require.NoError(m.t, m.c.poll(func(context.Context) bool {
		for _, point := range mountsBelow(m.t, m.kubelet()) {
			if strings.Contains(point, "kubernetes.io") && strings.Contains(point, "csi") {
				return false
			}
		}
		return true
	}), "%s must unmount the volume that was detached from it: %v", m.name, mountsBelow(m.t, m.kubelet()))
}

// checkNothingLeft deletes all Pods and claims, and checks that their attachments and disks are removed.
func (s *sharedDisks) checkNothingLeft() {
	c, t := s.c, s.c.t
	c.mustRun("kubectl", "delete", "deployments", "--all", "--cascade=foreground", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "volumeattachments", "--all", "--timeout=2m")
	c.mustRun("kubectl", "delete", "pvc", "--all", "--timeout=2m")
	c.mustRun("kubectl", "wait", "--for=delete", "pv", "--all", "--timeout=2m")
	require.Contains(t, c.mustRun("kubectl", "get", "volumeattachments"), "No resources found")
	s.publicationHistory()
	left, err := filepath.Glob(filepath.Join(s.root, "volumes", "*"))
	require.NoError(t, err)
	require.Empty(t, left, "the disks are deleted with their claims")
}

func is(name string) func(string) bool  { return func(node string) bool { return node == name } }
func not(name string) func(string) bool { return func(node string) bool { return node != name } }

// waitRegistered waits until the node's kubelet knows the driver.
func (c *cluster) waitRegistered(node, name string) {
	c.t.Helper()
	client := c.client()
	require.NoError(c.t, c.poll(func(ctx context.Context) bool {
		found, err := client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, driver := range found.Spec.Drivers {
			if driver.Name == name {
				return true
			}
		}
		return false
	}), "driver %s does not register on %s", name, node)
}

// forcedDetaches are the objects that have an event about a forced detach, as "Kind name".
func forcedDetaches(t testing.TB, c *cluster) []string {
	t.Helper()
	list, err := c.client().CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=ForcedDetachVolume"})
	require.NoError(t, err)
	var on []string
	for _, event := range list.Items {
		on = append(on, event.InvolvedObject.Kind+" "+event.InvolvedObject.Name)
	}
	return on
}
