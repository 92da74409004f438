package userns

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
)

const (
	// blockSize is the number of ids of a Pod by default. The first block belongs to the node itself.
	blockSize = 65536
	// maxID is where ids end.
	maxID     = 1 << 32
	fileName  = "userns"
	fileLimit = 64 << 10
)

// Manager allocates blocks of ids to Pods. It is safe for concurrent use.
type Manager struct {
	podsDir string // contains one directory per Pod, named by its UID
	size    uint32 // number of IDs of a Pod
	logger  *slog.Logger
	procDir string // /proc, from which lost records are rebuilt
	subids  subids

	mu     sync.Mutex           // guards all below
	ids    idRange              // that blocks are allocated from
	blocks map[uint32]types.UID // nil until the records were read
	pods   map[types.UID]uint32
}

// New returns a Manager of the Pods whose directories are in podsDir. Each gets idsPerPod IDs, a multiple of 65536; 65536 if zero.
func New(podsDir string, idsPerPod int64, logger *slog.Logger) *Manager {
	size := uint32(cmp.Or(idsPerPod, blockSize))
	return &Manager{podsDir: podsDir, size: size, ids: allButFirst(size), logger: logger, procDir: "/proc", subids: systemSubids()}
}

// record is the content of the file.
type record struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// Ensure returns the Pod's user namespace, always the same one, and allocates it at the first call. The Pod's directory
// must exist.
func (m *Manager) Ensure(uid types.UID) (*runtimeapi.UserNamespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.load(); err != nil {
		return nil, err
	}
	block, ok := m.pods[uid]
	if !ok {
		first, end := m.ids.blocks(m.size)
		for block = first; block < end && m.blocks[block] != ""; block++ {
			continue
		}
		if block >= end {
			return nil, fmt.Errorf("allocate user namespace of Pod %s: all %d blocks of ids are in use", uid, end-min(first, end))
		}
		if err := m.write(uid, block); err != nil {
			return nil, err
		}
		m.blocks[block], m.pods[uid] = uid, block
	}
	ids := []*runtimeapi.IDMapping{{HostId: block * m.size, ContainerId: 0, Length: m.size}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}, nil
}

// Release frees the Pod's block. No process of the Pod may run any more. It does nothing for a Pod without a block.
func (m *Manager) Release(uid types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := os.Remove(m.file(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release user namespace of Pod %s: %w", uid, err)
	}
	if block, ok := m.pods[uid]; ok {
		delete(m.pods, uid)
		delete(m.blocks, block)
		for other, its := range m.pods { // damaged records can have given two Pods the same block
			if its == block {
				m.blocks[block] = other
			}
		}
	}
	return nil
}

func (m *Manager) file(uid types.UID) string {
	return filepath.Join(m.podsDir, string(uid), fileName)
}

// load reads the records of earlier processes, once. A damaged record is set aside, and rebuilt from the Pod's processes:
// a Pod without any gets a new block. Blocks that unknown processes use stay reserved.
func (m *Manager) load() error {
	if m.blocks != nil {
		return nil
	}
	entries, err := os.ReadDir(m.podsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read user namespaces of pods: %w", err)
	}
	m.blocks, m.pods = map[uint32]types.UID{}, map[types.UID]uint32{}
	complete := false
	defer func() {
		if !complete { // the next call reads them again
			m.blocks, m.pods = nil, nil
		}
	}()
	var lost []types.UID
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		uid := types.UID(entry.Name())
		block, found, err := m.read(uid)
		if statefile.IsPassing(err) {
			return err
		}
		if err != nil {
			statefile.SetAside(m.logger, m.file(uid), err, "the user namespace of Pod "+string(uid)+" is read from its processes")
			lost = append(lost, uid)
			continue
		}
		if !found {
			continue
		}
		if other := m.blocks[block]; other != "" {
			m.logger.Error("two Pods have the same ids: delete one of them", "pod", uid, "other", other, "firstID", block*m.size)
		}
		m.blocks[block], m.pods[uid] = uid, block
	}
	if len(lost) > 0 {
		m.rebuild(lost)
	}
	complete = true
	return nil
}

// read reads one Pod's record.
func (m *Manager) read(uid types.UID) (block uint32, found bool, err error) {
	data, err := statefile.Read(m.file(uid), fileLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read user namespace of Pod %s: %w", uid, err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return 0, false, fmt.Errorf("read user namespace of Pod %s: %w", uid, err)
	}
	if len(r.UIDs) != 1 || len(r.GIDs) != 1 || r.UIDs[0] != r.GIDs[0] || r.UIDs[0].ContainerID != 0 ||
		r.UIDs[0].Length != m.size || r.UIDs[0].HostID%m.size != 0 || r.UIDs[0].HostID == 0 {
		return 0, false, fmt.Errorf("read user namespace of Pod %s: not one block of %d ids", uid, m.size)
	}
	return r.UIDs[0].HostID / m.size, true, nil
}

// write records a Pod's block durably.
func (m *Manager) write(uid types.UID, block uint32) error {
	ids := []mapping{{HostID: block * m.size, Length: m.size}}
	data, err := json.Marshal(record{UIDs: ids, GIDs: ids})
	if err != nil {
		return fmt.Errorf("record user namespace of Pod %s: %w", uid, err)
	}
	if err := atomicfile.Write(m.file(uid), data, 0o600); err != nil {
		return fmt.Errorf("record user namespace of Pod %s: %w", uid, err)
	}
	return nil
}
