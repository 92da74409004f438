package cpus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"

	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/kubelet/resources/checkpoint"
)

// StateFile is the name of the state file in the kubelet's directory.
const StateFile = "cpu_manager_state"

// maxStateSize is the largest size of the file: some hundred bytes a container.
const maxStateSize = 16 << 20

// state is what was decided: the shared pool, and the CPUs of containers that have their own, by the Pod's UID and the
// container's name.
type state struct {
	shared cpuset.CPUSet
	given  map[string]map[string]cpuset.CPUSet
}

func (s state) clone() state {
	out := state{shared: s.shared, given: make(map[string]map[string]cpuset.CPUSet, len(s.given))}
	for uid, containers := range s.given {
		out.given[uid] = maps.Clone(containers)
	}
	return out
}

// set records the CPUs of a container.
func (s *state) set(uid, container string, cpus cpuset.CPUSet) {
	if s.given == nil {
		s.given = map[string]map[string]cpuset.CPUSet{}
	}
	if s.given[uid] == nil {
		s.given[uid] = map[string]cpuset.CPUSet{}
	}
	s.given[uid][container] = cpus
}

// exclusive returns the CPUs that are not shared.
func (s state) exclusive() cpuset.CPUSet {
	all := cpuset.New()
	for _, containers := range s.given {
		for _, cpus := range containers {
			all = all.Union(cpus)
		}
	}
	return all
}

// fileContent is the content of the state file. The names of its fields, and their order, are part of the checksum.
type fileContent struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
	Checksum      sum                          `json:"checksum"`
}

// sum is a checksum.
type sum uint64

// Names of upstream's type: the first is that of files that it writes, the second that of some releases.
const (
	upstreamType    = "(*state.CPUManagerCheckpoint)"
	upstreamTypeAlt = "(*state.CPUManagerCheckpointV2)"
)

func (c *fileContent) checksum(name string) sum {
	content := *c
	content.Checksum = 0
	if content.Entries == nil {
		content.Entries = map[string]map[string]string{}
	}
	return sum(checkpoint.Checksum(&content, "(*cpus.fileContent)", name, "(cpus.sum)", "(checksum.Checksum)"))
}

// readState reads the file of a policy. found is false if there is none.
func readState(dir, policy string) (s state, found bool, err error) {
	path := filepath.Join(dir, StateFile)
	data, err := statefile.Read(path, maxStateSize)
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	if err == nil {
		s, err = parseState(data, policy)
	}
	if err != nil {
		return s, false, fmt.Errorf("read the CPU manager's state %s: %w; drain the node and remove the file", path, err)
	}
	return s, true, nil
}

func parseState(data []byte, policy string) (s state, err error) {
	var c fileContent
	if err := json.Unmarshal(data, &c); err != nil {
		return s, fmt.Errorf("not a state: %w", err)
	}
	if want := c.checksum(upstreamType); c.Checksum != 0 && c.Checksum != want && c.Checksum != c.checksum(upstreamTypeAlt) {
		return s, fmt.Errorf("its checksum is %d, that of its content is %d", c.Checksum, want)
	}
	if c.PolicyName != policy {
		return s, fmt.Errorf("configured policy %q differs from state checkpoint policy %q", policy, c.PolicyName)
	}
	if s.shared, err = cpuset.Parse(c.DefaultCPUSet); err != nil {
		return s, fmt.Errorf("shared CPUs %q: %w", c.DefaultCPUSet, err)
	}
	for uid, containers := range c.Entries {
		for name, text := range containers {
			cpus, err := cpuset.Parse(text)
			if err != nil {
				return s, fmt.Errorf("CPUs %q of container %q of Pod %s: %w", text, name, uid, err)
			}
			s.set(uid, name, cpus)
		}
	}
	return s, nil
}

// writeState replaces the file.
func writeState(dir, policy string, s state) error {
	c := fileContent{PolicyName: policy, DefaultCPUSet: s.shared.String(), Entries: map[string]map[string]string{}}
	for uid, containers := range s.given {
		c.Entries[uid] = map[string]string{}
		for name, cpus := range containers {
			c.Entries[uid][name] = cpus.String()
		}
	}
	c.Checksum = c.checksum(upstreamType)
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, StateFile), data, 0o600); err != nil {
		return fmt.Errorf("write the CPU manager's state: %w", err)
	}
	return nil
}
