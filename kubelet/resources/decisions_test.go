package resources_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/resources/cpus"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine"
	"github.com/berth-dev/berth/kubelet/resources/memory"
)

// recordedDecisions has a line for each random machine: its seed, and the sum of the decisions on which upstream and we agreed when
// `make judge-resources` last wrote it.
const recordedDecisions = "testdata/upstream-decisions.txt"

// TestDecisionsAreThoseUpstreamMade repeats decisions that upstream has made, too, without it.
func TestDecisionsAreThoseUpstreamMade(t *testing.T) {
	file, err := os.Open(recordedDecisions)
	require.NoError(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		seed, sum, _ := strings.Cut(lines.Text(), " ")
		number, err := strconv.ParseInt(seed, 10, 64)
		require.NoError(t, err)
		t.Run(seed, func(t *testing.T) {
			t.Parallel()
			c := newComparison(t, number, nil)
			c.run(comparedSteps)
			require.Equal(t, sum, c.sum(), "the decisions differ from upstream's: `make judge-resources SEED=%s MACHINES=1` shows where", seed)
		})
	}
	require.NoError(t, lines.Err())
}

// comparedSteps is how much happens on a machine.
const comparedSteps = 40

func (c *comparison) sum() string { return hex.EncodeToString(c.decisions.Sum(nil)[:8]) }

// comparison is a life whose decisions upstream makes, too, or has made.
type comparison struct {
	*life
	// upstream and upstreamDir are nil and empty if its decisions are known already.
	upstream             upstream
	upstreamDir          string
	admissions, refusals int
	// faults are how often upstream could not go on, or only with our files.
	faults int
	// decisions is the sum of all decisions.
	decisions hash.Hash
}

// upstream has upstream's managers.
type upstream interface {
	ask(t *testing.T, r judgeRequest) judgeResponse
}

// newComparison returns the life of a seed. with is nil if upstream's decisions are known already.
func newComparison(t *testing.T, seed int64, with upstream) *comparison {
	l := newLife(t, seed)
	splitCaches(l.topology, l.random)
	// Upstream refuses these together.
	if l.config.CPUOptions.PreferCache && l.config.CPUOptions.Distribute {
		l.config.CPUOptions.PreferCache = false
	}
	l.config.Dir = t.TempDir()
	l.restart()
	c := &comparison{life: l, upstream: with, decisions: sha256.New()}
	if with != nil {
		c.upstreamDir = t.TempDir()
		c.restartUpstream()
	}
	return c
}

// splitCaches gives some machines several last-level caches in each NUMA node.
func splitCaches(topology *machine.Topology, random *rand.Rand) {
	if random.Intn(2) == 0 {
		return
	}
	for id, cpu := range topology.CPUs {
		cpu.Cache = cpu.Core / 2
		topology.CPUs[id] = cpu
	}
}

func (c *comparison) run(steps int) {
	for range steps {
		switch n := c.random.Intn(12); {
		case n == 0 && c.nothingShared():
			c.faults++
		case n == 0:
			c.exchange()
		case n == 1:
			c.restart()
		case n < 5 && len(c.pods) > 0:
			c.releaseOne()
		default:
			c.admitOne()
		}
		c.compare()
		fmt.Fprintln(c.decisions, cpuState(c.t, c.config.Dir), memoryState(c.t, c.config.Dir))
		if c.mixedNodes() {
			c.faults++
			return
		}
	}
}

// nothingShared reports whether containers have all CPUs that are not reserved: upstream does not start with that state.
func (c *comparison) nothingShared() bool {
	state := cpuState(c.t, c.config.Dir)
	return state["defaultCpuSet"] == "" && state["entries"] != nil
}

// mixedNodes reports whether a NUMA node is not in the group with which it gives memory: upstream does not start with that state, or not
// always.
func (c *comparison) mixedNodes() bool {
	file, groups := readMemoryState(c.t, c.config.Dir), map[int]string{}
	for id, node := range file.MachineState {
		groups[id] = fmt.Sprint(node.Cells)
	}
	for _, containers := range file.Entries {
		for _, blocks := range containers {
			for _, b := range blocks {
				for _, id := range b.NUMAAffinity {
					if groups[id] != fmt.Sprint(b.NUMAAffinity) {
						return true
					}
				}
			}
		}
	}
	return false
}

// exchange has each side go on with the files of the other.
func (c *comparison) exchange() {
	if c.upstream == nil {
		c.restart()
		return
	}
	c.config.Dir, c.upstreamDir = c.upstreamDir, c.config.Dir
	c.restart()
	c.restartUpstream()
}

func (c *comparison) admitOne() {
	pod := c.pod()
	pod.Name, pod.Namespace = string(pod.UID), "default"
	before := memoryState(c.t, c.config.Dir)
	ours := c.manager.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	c.admissions++
	fmt.Fprintln(c.decisions, ours.Admit, ours.Reason)
	if c.upstream != nil {
		c.compareAdmission(pod, ours, before)
	}
	if ours.Admit {
		c.pods[pod.UID] = pod
	} else {
		c.refusals++
	}
}

// compareAdmission has upstream decide on a Pod that we have decided on.
func (c *comparison) compareAdmission(pod *corev1.Pod, ours lifecycle.PodAdmitResult, before map[string]any) {
	upstreams := memoryState(c.t, c.upstreamDir)
	theirs := c.upstream.ask(c.t, judgeRequest{Admit: pod})
	require.Equal(c.t, theirs.Admit, ours.Admit, "ours: %s %s; upstream's: %s %s; Pod: %v; before: %v; %+v", ours.Reason, ours.Message, theirs.Reason,
		theirs.Message, describe(pod), before, c.config)
	require.Equal(c.t, theirs.Reason, ours.Reason, "ours: %s; upstream's: %s", ours.Message, theirs.Message)
	if !ours.Admit && !c.nothingShared() && !reflect.DeepEqual(upstreams, memoryState(c.t, c.upstreamDir)) {
		c.faults++
		require.Equal(c.t, before, memoryState(c.t, c.config.Dir), "a Pod that is refused changes nothing")
		for _, name := range []string{cpus.StateFile, memory.StateFile} {
			data, err := os.ReadFile(filepath.Join(c.config.Dir, name))
			require.NoError(c.t, err)
			require.NoError(c.t, os.WriteFile(filepath.Join(c.upstreamDir, name), data, 0o600))
		}
		c.restartUpstream()
	}
}

// describe returns what a Pod's containers request.
func describe(pod *corev1.Pod) (out []string) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		text := c.Name
		if c.RestartPolicy != nil {
			text = "sidecar " + text
		}
		for name, quantity := range c.Resources.Requests {
			text += fmt.Sprintf(" %s=%s", name, quantity.String())
		}
		out = append(out, text)
	}
	return out
}

func (c *comparison) releaseOne() {
	uids := make([]types.UID, 0, len(c.pods))
	for uid := range c.pods {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	uid := uids[c.random.Intn(len(uids))]
	c.manager.Release(uid)
	if c.upstream != nil {
		c.upstream.ask(c.t, judgeRequest{Release: uid})
	}
	delete(c.pods, uid)
}

// compare compares the state files.
func (c *comparison) compare() {
	if c.upstream == nil {
		return
	}
	require.Equal(c.t, cpuState(c.t, c.upstreamDir), cpuState(c.t, c.config.Dir))
	require.Equal(c.t, memoryState(c.t, c.upstreamDir), memoryState(c.t, c.config.Dir))
}

// cpuState returns all of the CPU manager's file.
func cpuState(t *testing.T, dir string) map[string]any {
	out := map[string]any{}
	readJSON(t, filepath.Join(dir, cpus.StateFile), &out)
	if entries, ok := out["entries"].(map[string]any); ok && len(entries) == 0 {
		delete(out, "entries")
	}
	return out
}

// memoryFile is the memory manager's state file.
type memoryFile struct {
	PolicyName   string
	MachineState map[int]struct {
		NumberOfAssignments int
		MemoryMap           map[string]struct{ Total, SystemReserved, Allocatable, Reserved, Free uint64 }
		Cells               []int
	}
	Entries map[string]map[string][]memory.Block
}

func readMemoryState(t *testing.T, dir string) (file memoryFile) {
	readJSON(t, filepath.Join(dir, memory.StateFile), &file)
	return file
}

// memoryState returns what containers have, and how much the groups of NUMA nodes have left: which node of a group a page is counted
// at depends on the order of releases.
func memoryState(t *testing.T, dir string) map[string]any {
	file := readMemoryState(t, dir)
	out := map[string]any{"policy": file.PolicyName}
	groups := map[string]uint64{}
	for id, node := range file.MachineState {
		slices.Sort(node.Cells)
		out[fmt.Sprint("assignments ", id)] = node.NumberOfAssignments
		for kind, table := range node.MemoryMap {
			out[fmt.Sprint("table ", id, kind)] = []uint64{table.Total, table.SystemReserved, table.Allocatable}
			groups[fmt.Sprint("free ", node.Cells, kind)] += table.Free
			groups[fmt.Sprint("reserved ", node.Cells, kind)] += table.Reserved
		}
	}
	out["groups"] = groups
	blocks := map[string]string{}
	for uid, containers := range file.Entries {
		for name, list := range containers {
			for _, b := range list {
				blocks[uid+"/"+name+"/"+string(b.Type)] = fmt.Sprint(b.NUMAAffinity, b.Size)
			}
		}
	}
	out["blocks"] = blocks
	return out
}

func readJSON(t *testing.T, path string, into any) {
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, into), "%s", data)
}

func (c *comparison) restartUpstream() {
	config := c.config
	start := &judgeStart{
		Dir: c.upstreamDir, Machine: c.topology, CPUPolicy: "static", MemoryPolicy: "Static", TopologyPolicy: string(config.Policy), TopologyScope: "container",
		CPUOptions: map[string]string{}, TopologyOptions: map[string]string{}, ReservedCPUCount: int64(config.ReservedCPUCount), ReservedMemory: config.ReservedMemory,
	}
	for name, set := range map[string]bool{
		"full-pcpus-only": config.CPUOptions.FullCores, "distribute-cpus-across-numa": config.CPUOptions.Distribute,
		"strict-cpu-reservation": config.CPUOptions.StrictReservation, "prefer-align-cpus-by-uncorecache": config.CPUOptions.PreferCache,
	} {
		if set {
			start.CPUOptions[name] = strconv.FormatBool(set)
		}
	}
	if config.PodScope {
		start.TopologyScope = "pod"
	}
	if config.PreferClosest && config.Policy != hints.None {
		start.TopologyOptions["prefer-closest-numa-nodes"] = "true"
	}
	for _, pod := range c.pods {
		start.Pods = append(start.Pods, pod)
	}
	c.upstream.ask(c.t, judgeRequest{Start: start})
}

// judgeRequest, judgeStart and judgeResponse are the messages of the program resourcejudge.
type judgeRequest struct {
	Start   *judgeStart `json:",omitempty"`
	Admit   *corev1.Pod `json:",omitempty"`
	Release types.UID   `json:",omitempty"`
}

type judgeStart struct {
	Dir                                                    string
	Pods                                                   []*corev1.Pod
	Machine                                                *machine.Topology
	CPUPolicy, MemoryPolicy, TopologyPolicy, TopologyScope string
	CPUOptions, TopologyOptions                            map[string]string
	ReservedCPUCount                                       int64
	ReservedMemory                                         memory.Reservation
}

type judgeResponse struct {
	Admit                  bool
	Reason, Message, Error string
}
