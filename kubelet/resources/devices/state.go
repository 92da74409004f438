package devices

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/kubelet/resources/checkpoint"
)

// Names in the kubelet's directory, as device plugins expect them.
const (
	// Dir is the directory of the sockets of the kubelet and of device plugins.
	Dir = "device-plugins"
	// StateFile is the name of the state file in Dir.
	StateFile  = "kubelet_internal_checkpoint"
	socketName = "kubelet.sock"
)

// maxStateSize is the largest size of the file: some kilobytes a container.
const maxStateSize = 64 << 20

// noNode is the number under which devices are that are on no NUMA node.
const noNode = -1

// byNode are the IDs of devices by the NUMA nodes that they are on.
type byNode map[int64][]string

// ids returns the devices, sorted.
func (b byNode) ids() []string {
	all := map[string]bool{}
	for _, list := range b {
		for _, id := range list {
			all[id] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// entry is what one container has of one resource.
type entry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     byNode
	AllocResp     []byte
}

// content and fileContent are the content of the file. The names of their fields, and their order, are part of the checksum.
type content struct {
	PodDeviceEntries  []entry
	RegisteredDevices map[string][]string
}

type fileContent struct {
	Data     content
	Checksum uint64
}

func (c *content) checksum() uint64 {
	return checkpoint.Checksum(*c, "devices.content", "checkpoint.checkpointData", "devices.entry", "checkpoint.PodDevicesEntry",
		"devices.byNode", "checkpoint.DevicesPerNUMA")
}

// grant is what one container has of one resource.
type grant struct {
	devices byNode
	// response is the plugin's response to their allocation; nil while they are only reserved.
	response *pluginapi.ContainerAllocateResponse
	// stored says that the state file has it.
	stored bool
	// nodes are the NUMA nodes from which they were to come, and reused what they have of an init container.
	nodes  []int
	reused []string
}

// grants are what containers have, by the Pod's UID, the container's name and the resource.
type grants map[string]map[string]map[string]*grant

func (g grants) get(uid, container, resource string) *grant { return g[uid][container][resource] }

func (g grants) set(uid, container, resource string, to *grant) {
	if g[uid] == nil {
		g[uid] = map[string]map[string]*grant{}
	}
	if g[uid][container] == nil {
		g[uid][container] = map[string]*grant{}
	}
	g[uid][container][resource] = to
}

func (g grants) remove(uid, container, resource string) {
	delete(g[uid][container], resource)
	if len(g[uid][container]) == 0 {
		delete(g[uid], container)
	}
	if len(g[uid]) == 0 {
		delete(g, uid)
	}
}

// readState reads the file. One that does not exist has nothing.
func readState(path string) (given grants, registered []string, err error) {
	given = grants{}
	data, err := statefile.Read(path, maxStateSize)
	if errors.Is(err, fs.ErrNotExist) {
		return given, nil, nil
	}
	if err != nil {
		return given, nil, err
	}
	var c fileContent
	if err := json.Unmarshal(data, &c); err != nil {
		return given, nil, fmt.Errorf("not a state: %w", err)
	}
	if want := c.Data.checksum(); c.Checksum != want {
		return given, nil, fmt.Errorf("its checksum is %d, that of its content is %d", c.Checksum, want)
	}
	for _, e := range c.Data.PodDeviceEntries {
		response := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, response); err != nil {
			return given, nil, fmt.Errorf("devices of container %q of Pod %s: %w", e.ContainerName, e.PodUID, err)
		}
		given.set(e.PodUID, e.ContainerName, e.ResourceName, &grant{devices: e.DeviceIDs, response: response, stored: true})
	}
	return given, slices.Sorted(maps.Keys(c.Data.RegisteredDevices)), nil
}

// writeState replaces the file. Devices that are only reserved are not written.
func writeState(path string, given grants, registered map[string][]string) error {
	c := fileContent{Data: content{RegisteredDevices: registered}}
	for uid, containers := range given {
		for container, resources := range containers {
			for resource, g := range resources {
				if g.response == nil {
					continue
				}
				response, err := proto.MarshalOptions{Deterministic: true}.Marshal(g.response)
				if err != nil {
					return fmt.Errorf("write devices of container %q of Pod %s: %w", container, uid, err)
				}
				c.Data.PodDeviceEntries = append(c.Data.PodDeviceEntries, entry{
					PodUID: uid, ContainerName: container, ResourceName: resource, DeviceIDs: g.devices, AllocResp: response,
				})
			}
		}
	}
	slices.SortFunc(c.Data.PodDeviceEntries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.ContainerName, b.ContainerName), cmp.Compare(a.ResourceName, b.ResourceName))
	})
	c.Checksum = c.Data.checksum()
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("write the device manager's state %s: %w", filepath.Base(path), err)
	}
	return nil
}
