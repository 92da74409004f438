//go:build integration

package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cri"
)

// nodeAudit finds what on a node belongs to no Pod of the API server.
type nodeAudit struct {
	// root is the kubelet's directory, logs that of the containers' logs.
	root, logs string
	// runDir is containerd's, endpoint its socket, bridge the Pods' network.
	runDir, endpoint, bridge string
	// cgroup is the name of the cgroup that holds kubepods.
	cgroup string
}

func (c *cluster) audit() nodeAudit {
	return nodeAudit{
		root: filepath.Join(c.dataDir, "kubelet"), logs: filepath.Join(c.dataDir, "log", "pods"), runDir: c.runDir(),
		endpoint: filepath.Join(c.runDir(), "containerd.sock"), bridge: "berth" + c.id(), cgroup: "berth-" + c.id(),
	}
}

// requireClean waits until the node has nothing but the given Pods, and fails the test if something else remains.
func (a nodeAudit) requireClean(t testing.TB, pods []corev1.Pod) {
	t.Helper()
	client, err := cri.New(cri.Deps{}, cri.Config{Endpoint: a.endpoint})
	require.NoError(t, err)
	defer client.Close()
	var found []string
	deadline := time.Now().Add(waitTimeout)
	for time.Now().Before(deadline) {
		if found = a.orphans(t.Context(), client, pods); len(found) == 0 {
			return
		}
		time.Sleep(200 * time.Millisecond) // the kernel and the runtime have no event for "nothing is left"
	}
	t.Errorf("left on the node without a Pod:\n  %s", strings.Join(found, "\n  "))
}

var uidPattern = regexp.MustCompile(`[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}`)

// orphans lists what belongs to none of the Pods.
func (a nodeAudit) orphans(ctx context.Context, client *cri.Client, pods []corev1.Pod) []string {
	wanted := map[string]bool{}
	for i := range pods {
		wanted[string(pods[i].UID)] = true
	}
	known, networked, found := a.runtimeObjects(ctx, client, wanted)
	foreign := func(kind, path string) {
		uid := strings.ReplaceAll(uidPattern.FindString(path), "_", "-")
		if uid != "" && !wanted[uid] {
			found = append(found, kind+" "+path)
		}
	}
	for _, dir := range glob(filepath.Join(a.root, "pods", "*")) {
		foreign("directory", dir)
	}
	for _, dir := range glob(filepath.Join(a.logs, "*")) {
		foreign("log directory", dir)
	}
	for _, hierarchy := range append(glob("/sys/fs/cgroup/*/"+a.cgroup), "/sys/fs/cgroup/"+a.cgroup) {
		_ = filepath.WalkDir(hierarchy, func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return nil // it may disappear meanwhile
			}
			foreign("cgroup", path)
			if id := filepath.Base(path); len(id) == 64 && !known[id] {
				found = append(found, "cgroup of no container "+path)
			}
			return nil
		})
	}
	found = append(found, a.orphanMounts(known, wanted)...)
	found = append(found, a.orphanShims(known)...)
	for _, dir := range glob(filepath.Join(a.runDir, "containerd", "io.containerd.runtime.v2.task", "k8s.io", "*")) {
		if !known[filepath.Base(dir)] {
			found = append(found, "bundle of no container "+dir)
		}
	}
	for what, pattern := range map[string]string{
		"pod addresses":      filepath.Join(a.runDir, "addresses", a.bridge, "[0-9]*"),
		"interfaces":         "/sys/class/net/" + a.bridge + "/brif/*",
		"network records":    "/var/lib/cni/results/" + a.bridge + "-*",
		"network namespaces": filepath.Join(a.runDir, "containerd", "*", "netns", "*"),
	} {
		if paths := glob(pattern); len(paths) > networked {
			found = append(found, fmt.Sprintf("%d %s for %d sandboxes: %v", len(paths), what, networked, paths))
		}
	}
	return append(found, a.orphanMemory(networked)...)
}

// orphanMemory is the shared memory of sandboxes that have ended. The directory of one stays as long as the sandbox is known.
func (a nodeAudit) orphanMemory(ready int) []string {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(a.runDir))
	if err != nil {
		return []string{err.Error()}
	}
	var memory []string
	for _, mount := range mounts {
		if filepath.Base(mount.Mountpoint) == "shm" {
			memory = append(memory, mount.Mountpoint)
		}
	}
	if len(memory) > ready {
		return []string{fmt.Sprintf("%d mounts of shared memory for %d sandboxes: %v", len(memory), ready, memory)}
	}
	return nil
}

// runtimeObjects returns what the runtime has: known are the IDs of its sandboxes and containers, networked how many sandboxes hold
// a network.
func (a nodeAudit) runtimeObjects(ctx context.Context, client *cri.Client, wanted map[string]bool,
) (known map[string]bool, networked int, found []string) {
	known = map[string]bool{}
	boxes, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return known, 0, []string{"list sandboxes: " + err.Error()}
	}
	containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return known, 0, []string{"list containers: " + err.Error()}
	}
	ready := map[string]int{}
	for _, box := range boxes.Items {
		known[box.Id] = true
		if !wanted[box.Metadata.Uid] {
			found = append(found, fmt.Sprintf("sandbox %s of %s (%s)", box.Id, box.Metadata.Name, box.State))
		}
		if box.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			networked++
			if ready[box.Metadata.Uid]++; ready[box.Metadata.Uid] > 1 {
				found = append(found, "second ready sandbox of "+box.Metadata.Name)
			}
		}
	}
	running := map[string]int{}
	for _, c := range containers.Containers {
		known[c.Id] = true
		uid := c.Labels["io.kubernetes.pod.uid"]
		if !wanted[uid] {
			found = append(found, fmt.Sprintf("container %s of %s (%s)", c.Id, c.Labels["io.kubernetes.pod.name"], c.State))
		}
		if key := uid + c.Metadata.Name; c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			if running[key]++; running[key] > 1 {
				found = append(found, "second running container of "+c.Labels["io.kubernetes.pod.name"])
			}
		}
	}
	return known, networked, found
}

var idPattern = regexp.MustCompile(`/([0-9a-f]{64})(/|$)`)

func (a nodeAudit) orphanMounts(known, wanted map[string]bool) (found []string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return []string{err.Error()}
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		path := fields[1]
		if rest, ok := strings.CutPrefix(path, a.root+"/pods/"); ok {
			if uid, _, _ := strings.Cut(rest, "/"); !wanted[uid] {
				found = append(found, "mount "+path)
			}
		}
		if match := idPattern.FindStringSubmatch(path); match != nil && strings.HasPrefix(path, a.runDir) && !known[match[1]] {
			found = append(found, "mount of no container "+path)
		}
	}
	return found
}

// orphanShims are the shims of sandboxes that the runtime does not know.
func (a nodeAudit) orphanShims(known map[string]bool) (found []string) {
	for _, dir := range glob("/proc/[0-9]*") {
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended meanwhile
		}
		argv := strings.Split(string(command), "\x00")
		if !strings.HasPrefix(filepath.Base(argv[0]), "containerd-shim") ||
			!slices.ContainsFunc(argv, func(arg string) bool { return strings.HasPrefix(arg, a.runDir) }) {
			continue
		}
		for i := range argv[:len(argv)-1] {
			if argv[i] == "-id" && !known[argv[i+1]] {
				found = append(found, fmt.Sprintf("shim, process %s, of no sandbox %s", filepath.Base(dir), argv[i+1]))
			}
		}
	}
	return found
}

// duplicateContainers returns the Pods on the node whose container runs twice.
func duplicateContainers(node string) (found []string) {
	first := map[string]int{}
	marker := regexp.MustCompile(regexp.QuoteMeta(markersOn(node)) + `([a-z0-9]+);`)
	for _, dir := range glob("/proc/[0-9]*") {
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		match := marker.FindSubmatch(command)
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if match == nil || err != nil || bytes.Contains(status, []byte("\nState:\tZ")) {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if pids := strings.Fields(line); len(pids) > 2 && pids[0] == "NSpid:" && pids[len(pids)-1] == "1" {
				name := string(match[1])
				if first[name]++; first[name] > 1 {
					found = append(found, name+" runs "+strconv.Itoa(first[name])+" times")
				}
			}
		}
	}
	return found
}

func glob(pattern string) []string {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		panic(err) // the patterns are constants
	}
	return paths
}
