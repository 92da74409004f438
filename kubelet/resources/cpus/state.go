package cpus

import (
	"fmt"
	"maps"

	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/cpulist"
	"github.com/berth-dev/berth/kubelet/resources/checkpoint"
)

// StateFile is the name of the state file in the kubelet's directory.
const StateFile = "cpu_manager_state"

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
	Checksum      checkpoint.Sum               `json:"checksum"`
}

// Names of upstream's type: the first is that of files that it writes, the second that of some releases.
const (
	upstreamType    = "(*state.CPUManagerCheckpoint)"
	upstreamTypeAlt = "(*state.CPUManagerCheckpointV2)"
)

var _ checkpoint.Content = (*fileContent)(nil)

// Policy implements checkpoint.Content.
func (c *fileContent) Policy() string { return c.PolicyName }

// Stored implements checkpoint.Content.
func (c *fileContent) Stored() checkpoint.Sum { return c.Checksum }

// Sums implements checkpoint.Content.
func (c *fileContent) Sums() []checkpoint.Sum {
	return []checkpoint.Sum{c.checksum(upstreamType), c.checksum(upstreamTypeAlt)}
}

// Check implements checkpoint.Content.
func (c *fileContent) Check() error {
	_, err := c.state()
	return err
}

func (c *fileContent) checksum(name string) checkpoint.Sum {
	content := *c
	content.Checksum = 0
	if content.Entries == nil {
		content.Entries = map[string]map[string]string{}
	}
	return checkpoint.Sum(checkpoint.Checksum(&content, "(*cpus.fileContent)", name))
}

// state returns what the file says.
func (c *fileContent) state() (s state, err error) {
	if s.shared, err = cpulist.Parse(c.DefaultCPUSet); err != nil {
		return s, fmt.Errorf("shared CPUs %q: %w", c.DefaultCPUSet, err)
	}
	for uid, containers := range c.Entries {
		for name, text := range containers {
			cpus, err := cpulist.Parse(text)
			if err != nil {
				return s, fmt.Errorf("CPUs %q of container %q of Pod %s: %w", text, name, uid, err)
			}
			s.set(uid, name, cpus)
		}
	}
	return s, nil
}

func stateFile(dir string) checkpoint.File {
	return checkpoint.File{Dir: dir, Name: StateFile, Manager: "CPU manager"}
}

// readState reads the file of the policy. found is false if there is none, or if a damaged one was set aside.
func (m *Manager) readState() (s state, found bool, err error) {
	var c fileContent
	effect := ""
	if m.config.Static {
		effect = "containers that run get CPUs of their own anew, and may move to others"
	}
	found, err = stateFile(m.config.Dir).Open(m.logger, m.policy, effect, &c)
	if err != nil || !found {
		return s, false, err
	}
	s, err = c.state()
	return s, true, err
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
	return stateFile(dir).Write(&c)
}
