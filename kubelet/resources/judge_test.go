//go:build judge

package resources_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
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

var (
	judgePath  = flag.String("judge", "", "the program resourcejudge of conformance/")
	judgeLives = flag.Int64("judge-lives", 400, "how many random machines to compare")
	judgeSeed  = flag.Int64("judge-seed", 0, "the first random machine")
)

// TestDecisionsEqualUpstreams has upstream's managers and ours decide on the same random Pods, on the same random machines. Both admit
// the same Pods for the same reasons, and give them the same CPUs and memory. From time to time each goes on with the state files of
// the other.
//
// Two faults of upstream's are left out. Where CPUs are strictly reserved and containers have all others, its kubelet does not start
// again: it takes the empty shared pool for a damaged file. And a Pod that it refuses because its second container finds no memory may
// leave a NUMA node of a group in no group, a state with which it does not start either.
func TestDecisionsEqualUpstreams(t *testing.T) {
	require.NotEmpty(t, *judgePath, "run `make judge-resources`")
	admissions, refusals, faults := 0, 0, 0
	for seed := *judgeSeed; seed < *judgeSeed+*judgeLives; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := newComparison(t, seed)
			c.run(40)
			admissions, refusals, faults = admissions+c.admissions, refusals+c.refusals, faults+c.faults
		})
	}
	t.Logf("%d admissions, %d of them refused; %d faults of upstream's", admissions, refusals, faults)
}

// comparison is a life whose decisions upstream makes, too.
type comparison struct {
	*life
	upstream             *judge
	upstreamDir          string
	admissions, refusals int
	// faults are how often upstream could not go on, or only with our files.
	faults int
}

func newComparison(t *testing.T, seed int64) *comparison {
	l := newLife(t, seed)
	splitCaches(l.topology, l.random)
	// Upstream refuses these together.
	if l.config.CPUOptions.PreferCache && l.config.CPUOptions.Distribute {
		l.config.CPUOptions.PreferCache = false
	}
	l.config.Dir = t.TempDir()
	l.restart()
	c := &comparison{life: l, upstream: startJudge(t), upstreamDir: t.TempDir()}
	c.restartUpstream()
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
	}
}

// nothingShared reports whether containers have all CPUs that are not reserved: upstream does not start with that state.
func (c *comparison) nothingShared() bool {
	state := cpuState(c.t, c.config.Dir)
	return state["defaultCpuSet"] == "" && state["entries"] != nil
}

// exchange has each side go on with the files of the other.
func (c *comparison) exchange() {
	c.config.Dir, c.upstreamDir = c.upstreamDir, c.config.Dir
	c.restart()
	c.restartUpstream()
}

func (c *comparison) admitOne() {
	pod := c.pod()
	pod.Name, pod.Namespace = string(pod.UID), "default"
	before, upstreams := memoryState(c.t, c.config.Dir), memoryState(c.t, c.upstreamDir)
	ours := c.manager.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	theirs := c.upstream.ask(c.t, judgeRequest{Admit: pod})
	c.admissions++
	require.Equal(c.t, theirs.Admit, ours.Admit, "ours: %s %s; upstream's: %s %s; Pod: %v; before: %v; %+v", ours.Reason, ours.Message, theirs.Reason,
		theirs.Message, describe(pod), before, c.config)
	require.Equal(c.t, theirs.Reason, ours.Reason, "ours: %s; upstream's: %s", ours.Message, theirs.Message)
	if ours.Admit {
		c.pods[pod.UID] = pod
		return
	}
	c.refusals++
	if !c.nothingShared() && !reflect.DeepEqual(upstreams, memoryState(c.t, c.upstreamDir)) {
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
	c.upstream.ask(c.t, judgeRequest{Release: uid})
	delete(c.pods, uid)
}

// compare compares the state files.
func (c *comparison) compare() {
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

// memoryState returns what containers have, and how much the groups of NUMA nodes have left: which node of a group a page is counted
// at depends on the order of releases.
func memoryState(t *testing.T, dir string) map[string]any {
	var file struct {
		PolicyName   string
		MachineState map[int]struct {
			NumberOfAssignments int
			MemoryMap           map[string]struct{ Total, SystemReserved, Allocatable, Reserved, Free uint64 }
			Cells               []int
		}
		Entries map[string]map[string][]memory.Block
	}
	readJSON(t, filepath.Join(dir, memory.StateFile), &file)
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

// judge is the running program.
type judge struct {
	in  io.Writer
	out *bufio.Reader
}

func startJudge(t *testing.T) *judge {
	cmd := exec.Command(*judgePath)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait())
	})
	return &judge{in: in, out: bufio.NewReader(out)}
}

func (j *judge) ask(t *testing.T, r judgeRequest) judgeResponse {
	require.NoError(t, json.NewEncoder(j.in).Encode(r))
	line, err := j.out.ReadBytes('\n')
	require.NoError(t, err)
	var out judgeResponse
	require.NoError(t, json.Unmarshal(line, &out))
	require.Empty(t, out.Error)
	return out
}
