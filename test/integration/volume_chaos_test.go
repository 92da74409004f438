//go:build integration

package integration

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/csidriver/registrar"
)

var (
	volumeRounds = flag.Int("volume-rounds", 10, "how many rounds TestVolumesSurviveWhateverDies runs")
	volumeSeed   = flag.Uint64("volume-seed", 0, "random seed (0: from the clock)")
)

// checkEvery is after how many rounds the faults pause and nothing may be left.
const checkEvery = 5

// TestVolumesSurviveWhateverDies lets Pods with random volumes come and go while the kubelet, the CSI driver, its
// registrar, containerd, the attach/detach controller and the provisioner and attacher are killed at random, and while
// the driver's calls fail, hang, or succeed with a lost response. All of them are real and processes of their own. Every
// few rounds, without faults, nothing may be left of Pods that are gone, and at the end everything that Pods have written
// to retained volumes must still exist.
func TestVolumesSurviveWhateverDies(t *testing.T) {
	seed := *volumeSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	w := newVolumeChaos(t, seed)
	began := time.Now()
	for round := range *volumeRounds {
		w.round(round)
		if (round+1)%checkEvery == 0 || round+1 == *volumeRounds {
			w.requireNothingLeft(fmt.Sprintf("after round %d", round))
		}
	}
	w.requireAllWritten()
	t.Logf("%d rounds in %s, %d Pods, %d of them wrote; killed: %s; calls: %s", *volumeRounds,
		time.Since(began).Round(time.Second), w.pods, len(w.acknowledgedPods()), w.killSummary(), w.proxy.faultSummary())
	w.shutdown()
}

// volumeChaos is the fixture of the test.
type volumeChaos struct {
	*cluster
	t      *testing.T
	client *kubernetes.Clientset
	proxy  *csiProxy
	// daemons are the parts of berth that are processes of their own.
	daemons  map[string]*daemon
	killable []string
	// acks is a directory in which each Pod leaves a file when it has written to all of its volumes.
	acks string
	pods int
	// writtenClaims has, by Pod, the retained claims that it writes to.
	writtenClaims map[string][]string

	mu            sync.Mutex // guards random, which goroutines share, and the registrar
	random        *rand.Rand
	stopRegistrar func() // ends the registrar
	kills         map[string]int
}

const driverSocket, proxySocket = "driver.sock", "proxy.sock"

func newVolumeChaos(t *testing.T, seed uint64) *volumeChaos {
	w := &volumeChaos{
		cluster: newCluster(t), t: t, random: rand.New(rand.NewPCG(seed, 1)), acks: t.TempDir(),
		daemons: make(map[string]*daemon), kills: make(map[string]int), writtenClaims: make(map[string][]string),
	}
	require.NoError(t, os.Chmod(w.acks, 0o777))
	sockets := shortDir(t)
	w.proxy = newCSIProxy(t, filepath.Join(sockets, proxySocket), filepath.Join(sockets, driverSocket),
		rand.New(rand.NewPCG(seed, 2)), passOn)
	w.launch("--unsafe-no-fsync", "--without", "kubelet,csi-driver,csi-provisioner,csi-attacher,attachdetach")
	w.out.waitFor(t, "kube-controller-manager    ready", w.ended)
	w.startDaemons(filepath.Join(sockets, driverSocket))
	w.register()
	w.out.waitFor(t, "is ready after", w.ended)
	w.client = w.cluster.client()
	importShell(t, w.cluster)
	w.makeObjects()
	return w
}

func (w *volumeChaos) startDaemons(driver string) {
	kubeconfig := func(part string) string { return filepath.Join(w.dataDir, "kubeconfigs", part+".kubeconfig") }
	pki := func(name string) string { return filepath.Join(w.dataDir, "pki", name) }
	logs := filepath.Join(w.dataDir, "log")
	for name, args := range map[string][]string{
		"kubelet": {"node", noEviction, "--kubeconfig", kubeconfig("node"), "--node-name", homeNode, "--node-ip", w.gateway(),
			"--container-runtime-endpoint", "unix://" + filepath.Join(w.runDir(), "containerd.sock"),
			"--healthz-port", "0", "--root-dir", w.kubeletDir(), "--pod-logs-dir", filepath.Join(logs, "pods"), "--cgroup-root", "/berth-" + w.id(),
			"--tls-cert-file", pki("kubelet-server.crt"), "--tls-private-key-file", pki("kubelet-server.key"),
			"--client-ca-file", pki("ca.crt")},
		"driver": {"csi-driver", "--endpoint", driver, "--node-id", homeNode, "--root", filepath.Join(w.dataDir, "disks")},
		"attachdetach": {"controllers", "--kubeconfig", kubeconfig("attachdetach"), "--controllers", "attachdetach",
			"--leader-election=false", "--attach-nodes", "kubernetes.io/hostname=" + homeNode},
		"csi-controllers": {"controllers", "--kubeconfig", filepath.Join(w.dataDir, "admin.kubeconfig"),
			"--leader-election=false", "--csi-capacity", "--csi-driver", csidriver.Name + "=" + w.proxy.socket},
	} {
		w.daemons[name] = startDaemon(w.t, name, logs, append([]string{w.berth}, args...)...)
		w.killable = append(w.killable, name)
	}
	w.killable = append(w.killable, "containerd", "registrar")
	slices.Sort(w.killable)
}

func (w *volumeChaos) kubeletDir() string { return filepath.Join(w.dataDir, "kubelet") }

// register starts the driver's registrar with the proxy as the driver's socket.
func (w *volumeChaos) register() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- registrar.Serve(ctx, registrar.Deps{}, registrar.Config{
			Registry: filepath.Join(w.kubeletDir(), "plugins_registry"), Driver: csidriver.Name, Endpoint: w.proxy.socket,
		})
	}()
	end := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("registrar: %v", err)
		}
	})
	w.stopRegistrar = end
	w.t.Cleanup(end)
}

// chance returns a random number below n.
func (w *volumeChaos) chance(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}

// killOne kills one of the processes.
func (w *volumeChaos) killOne() {
	name := w.killable[w.chance(len(w.killable))]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kills[name]++
	switch name {
	case "registrar":
		w.stopRegistrar()
		w.register()
	case "containerd":
		for pid, command := range w.processes() {
			if isProgram(command, "containerd") {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may be starting again just now
			}
		}
	default:
		w.daemons[name].kill()
	}
}

func (w *volumeChaos) killSummary() string {
	var parts []string
	for _, name := range w.killable {
		parts = append(parts, fmt.Sprintf("%s %d", name, w.kills[name]))
	}
	return strings.Join(parts, ", ")
}

// round creates some Pods, kills processes meanwhile, and returns when the Pods are gone.
func (w *volumeChaos) round(number int) {
	w.proxy.setFaultShare(0.2)
	stop := make(chan struct{})
	var chaos, pods sync.WaitGroup
	chaos.Go(func() {
		for range 1 + w.chance(3) {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(w.chance(2500)) * time.Millisecond):
				w.killOne()
			}
		}
		w.proxy.setFaultShare(0) // so that the round ends
	})
	for i := range 2 + w.chance(3) {
		w.pods++
		pod := w.randomPod(fmt.Sprintf("r%d-%d", number, i))
		early := w.chance(4) == 0
		after := time.Duration(w.chance(3000)) * time.Millisecond
		pods.Go(func() { w.runPod(pod, early, after) })
	}
	pods.Wait()
	close(stop)
	chaos.Wait()
	w.proxy.setFaultShare(0)
	require.False(w.t, w.t.Failed(), "round %d", number)
}

// runPod creates a Pod, waits until it has written or for a short time, and deletes it.
func (w *volumeChaos) runPod(pod *corev1.Pod, early bool, after time.Duration) {
	pods := w.client.CoreV1().Pods(pod.Namespace)
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*waitTimeout)
	defer cancel()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		w.t.Errorf("create Pod %s: %v", pod.Name, err)
		return
	}
	if early {
		time.Sleep(after) // deleted at any moment of its start
	} else if !waitUntil(ctx, func() bool { return exists(filepath.Join(w.acks, pod.Name)) }) {
		w.failPod(pod.Name, "did not write")
	}
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		w.t.Errorf("delete Pod %s: %v", pod.Name, err)
	}
	gone := waitUntil(ctx, func() bool {
		_, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if !gone {
		w.failPod(pod.Name, "is not gone")
	}
}

// failPod fails the test with a description of the Pod.
func (w *volumeChaos) failPod(pod, what string) {
	out, _ := w.run("kubectl", "describe", "pod", pod)
	w.t.Errorf("Pod %s %s:\n%s", pod, what, out)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// waitUntil calls satisfied until it returns true or ctx ends.
func waitUntil(ctx context.Context, satisfied func() bool) bool {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		if satisfied() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// acknowledgedPods lists the Pods that have written.
func (w *volumeChaos) acknowledgedPods() []string {
	entries, err := os.ReadDir(w.acks)
	require.NoError(w.t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// requireNothingLeft waits until nothing is left of the Pods that are gone.
func (w *volumeChaos) requireNothingLeft(when string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	var left []string
	clean := waitUntil(ctx, func() bool {
		if found := w.podLeftovers(ctx); ctx.Err() == nil {
			left = found // the last read may have been interrupted
		}
		return len(left) == 0
	})
	require.True(w.t, clean, "%s, without faults, there is left:\n%s", when, strings.Join(left, "\n"))
}

// podLeftovers lists everything of Pods: there must be none.
func (w *volumeChaos) podLeftovers(ctx context.Context) []string {
	var left []string
	table, err := os.ReadFile("/proc/self/mounts")
	require.NoError(w.t, err)
	for line := range strings.Lines(string(table)) {
		if words := strings.Fields(line); strings.HasPrefix(words[1], w.kubeletDir()+"/") {
			left = append(left, "mount: "+words[1])
		}
	}
	for _, device := range w.loopDevices() {
		left = append(left, "loop device: "+device)
	}
	left = append(left, filesBelow(filepath.Join(w.kubeletDir(), "pods"))...)
	for _, path := range filesBelow(filepath.Join(w.kubeletDir(), "plugins")) {
		if info, err := os.Lstat(path); err == nil && !(info.IsDir() && isSharedDir(path)) {
			left = append(left, path)
		}
	}
	attachments, err := w.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return append(left, err.Error())
	}
	for _, attachment := range attachments.Items {
		left = append(left, "volume attachment: "+attachment.Name)
	}
	node, err := w.client.CoreV1().Nodes().Get(ctx, homeNode, metav1.GetOptions{})
	if err != nil {
		return append(left, err.Error())
	}
	for _, name := range node.Status.VolumesInUse {
		left = append(left, "volume in use: "+string(name))
	}
	for _, attached := range node.Status.VolumesAttached {
		left = append(left, "volume attached: "+string(attached.Name))
	}
	return append(left, w.extraVolumes(ctx)...)
}

// isSharedDir reports whether a directory below plugins belongs to no single volume.
func isSharedDir(path string) bool {
	switch filepath.Base(path) {
	case "kubernetes.io", "csi", csidriver.Name, "volumeDevices", "publish", "staging":
		return true
	}
	return false
}

// extraVolumes lists disks, directories and objects of volumes that should have gone with their Pods.
func (w *volumeChaos) extraVolumes(ctx context.Context) []string {
	var extra []string
	volumes, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	disks := 0
	for _, pv := range volumes.Items {
		if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			extra = append(extra, "persistent volume: "+pv.Name)
		} else if pv.Spec.CSI != nil {
			disks++
		}
	}
	images, err := filepath.Glob(filepath.Join(w.dataDir, "disks", "volumes", "*"))
	require.NoError(w.t, err)
	if len(images) > disks {
		extra = append(extra, fmt.Sprintf("%d disks for %d volumes", len(images), disks))
	}
	return extra
}

func filesBelow(root string) []string {
	var files []string
	_ = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != root {
			files = append(files, path)
		}
		return nil // what disappears meanwhile is not left
	})
	return files
}

// shutdown stops everything in order.
func (w *volumeChaos) shutdown() {
	w.mu.Lock()
	w.stopRegistrar()
	w.mu.Unlock()
	for _, d := range w.daemons {
		d.stop()
	}
	w.cluster.stop()
	require.Empty(w.t, w.leftovers())
	require.Empty(w.t, w.loopDevices())
}
