package claims

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
)

// StateFile is the name of the state file in the kubelet's directory.
const StateFile = "dra_manager_state"

// maxStateSize is the largest size of the file: some kilobytes a claim.
const maxStateSize = 64 << 20

// The types below are the content of the state file.

// claim is a ResourceClaim that Pods of the node use.
type claim struct {
	ClaimUID  types.UID
	ClaimName string
	Namespace string
	// PodUIDs are the Pods that use it.
	PodUIDs sets.Set[string]
	// DriverState has the drivers that have allocated devices for it, with the devices that they have prepared.
	DriverState map[string]driverState

	// prepared says that all drivers have prepared it, as far as this process knows: after a restart they are asked once more.
	prepared bool
}

// driverNames returns the names of the drivers, sorted.
func (c *claim) driverNames() []string { return slices.Sorted(maps.Keys(c.DriverState)) }

type driverState struct{ Devices []device }

// device is what a driver has responded for one device.
type device struct {
	PoolName     string
	DeviceName   string
	ShareID      *types.UID
	RequestNames []string
	CDIDeviceIDs []string
}

type fileData struct {
	metav1.TypeMeta
	ClaimInfoStateList []*claim
}

type fileContent struct {
	Data     string
	Checksum uint32
}

// key identifies a claim by its namespace and name.
type key struct{ namespace, name string }

// readState reads the file. One that does not exist has no claims. The error of one that is damaged wraps statefile.ErrDamaged; no claims
// are returned then.
func readState(path string) (map[key]*claim, error) {
	out := map[key]*claim{}
	data, err := statefile.Read(path, maxStateSize)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err == nil {
		if err = parseState(data, out); err != nil {
			err = fmt.Errorf("%w: %w", statefile.ErrDamaged, err)
		}
	}
	if err != nil {
		return map[key]*claim{}, fmt.Errorf("read the state of ResourceClaims %s: %w", path, err)
	}
	return out, nil
}

func parseState(data []byte, out map[key]*claim) error {
	var outer fileContent
	if err := json.Unmarshal(data, &outer); err != nil {
		return fmt.Errorf("not a state: %w", err)
	}
	if want := crc32.ChecksumIEEE([]byte(outer.Data)); outer.Checksum != want {
		return fmt.Errorf("its checksum is %d, that of its data is %d", outer.Checksum, want)
	}
	var inner fileData
	if err := json.Unmarshal([]byte(outer.Data), &inner); err != nil {
		return fmt.Errorf("its data is no list of claims: %w", err)
	}
	for _, c := range inner.ClaimInfoStateList {
		if c == nil {
			return errors.New("one of its claims has no content")
		}
		if c.PodUIDs == nil {
			c.PodUIDs = sets.New[string]()
		}
		if c.DriverState == nil {
			c.DriverState = map[string]driverState{}
		}
		out[key{c.Namespace, c.ClaimName}] = c
	}
	return nil
}

// writeState replaces the file.
func writeState(path string, held map[key]*claim) error {
	list := slices.SortedFunc(maps.Values(held), func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ClaimName, b.ClaimName))
	})
	inner, err := json.Marshal(fileData{
		TypeMeta: metav1.TypeMeta{Kind: "DRACheckpoint", APIVersion: "checkpoint.dra.kubelet.k8s.io/v1"}, ClaimInfoStateList: list,
	})
	if err != nil {
		return err
	}
	data, err := json.Marshal(fileContent{Data: string(inner), Checksum: crc32.ChecksumIEEE(inner)})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("write the state of ResourceClaims: %w", err)
	}
	return nil
}

// refer records on the disk that the Pod uses the claim, before a driver is asked for it.
func (m *Manager) refer(k key, object *resourceapi.ResourceClaim, uid types.UID) (*claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.claims[k]
	if c == nil {
		c = &claim{
			ClaimUID: object.UID, ClaimName: object.Name, Namespace: object.Namespace, PodUIDs: sets.New[string](),
			DriverState: map[string]driverState{},
		}
		for _, result := range object.Status.Allocation.Devices.Results {
			c.DriverState[result.Driver] = driverState{}
		}
	}
	if c.ClaimUID != object.UID {
		// Upstream's words, which its specs wait for.
		return nil, fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists: its Pod has not ended on this node", k.name, c.ClaimUID)
	}
	if m.claims[k] != nil && c.PodUIDs.Has(string(uid)) {
		return c, nil
	}
	_, known := m.claims[k]
	m.claims[k] = c
	c.PodUIDs.Insert(string(uid))
	if err := m.save(); err != nil {
		// What is not on the disk must not look as if it were.
		c.PodUIDs.Delete(string(uid))
		if !known {
			delete(m.claims, k)
		}
		return nil, err
	}
	return c, nil
}
