package allocation

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/dump"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
)

// maxFileSize is the largest size of a checkpoint: some hundred bytes a container.
const maxFileSize = 32 << 20

// Resources are those of one Pod's containers, by name, and of the Pod as a whole. The field names are those of the
// files.
type Resources struct {
	ContainerResources map[string]corev1.ResourceRequirements
	PodLevelResources  *corev1.ResourceRequirements
}

// checkpoint is the content of a file. Data is JSON itself; the checksum is over it.
type checkpoint struct {
	Data     string `json:"data"`
	Checksum uint64 `json:"checksum"`
}

// checkpointData is the content of Data. Entries are encoded.
type checkpointData struct {
	Entries map[types.UID]json.RawMessage `json:"entries,omitempty"`
}

// checksum is upstream's: a hash of the dump of a Go value.
func checksum(data string) uint64 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(dump.ForHash(data)))
	return uint64(hash.Sum32())
}

// readCheckpoint reads a file. One that does not exist has no Pods.
func readCheckpoint(path string) (map[types.UID]Resources, error) {
	content, err := statefile.Read(path, maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var outer checkpoint
	if err := json.Unmarshal(content, &outer); err != nil {
		return nil, fmt.Errorf("not a checkpoint: %w", err)
	}
	if got := checksum(outer.Data); got != outer.Checksum {
		return nil, fmt.Errorf("its checksum is %d, that of its data is %d", outer.Checksum, got)
	}
	var inner struct {
		Entries map[types.UID]Resources `json:"entries"`
	}
	if err := json.Unmarshal([]byte(outer.Data), &inner); err != nil {
		return nil, fmt.Errorf("its data is not a list of Pods: %w", err)
	}
	return inner.Entries, nil
}

// writeCheckpoint replaces a file as a whole.
func writeCheckpoint(path string, pods map[types.UID]json.RawMessage) error {
	data, err := json.Marshal(checkpointData{pods})
	if err != nil {
		return err
	}
	content, err := json.Marshal(checkpoint{string(data), checksum(string(data))})
	if err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o600)
}
