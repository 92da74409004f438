package allocation

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/dump"
)

// maxFileSize is how large a file may be: some hundred bytes a container.
const maxFileSize = 32 << 20

// Resources are those of one Pod's containers, by name, and of the Pod as a whole. The names of the fields are those in
// the files.
type Resources struct {
	ContainerResources map[string]corev1.ResourceRequirements
	PodLevelResources  *corev1.ResourceRequirements
}

// checkpoint is a file's content. Data is JSON itself; the checksum is over it.
type checkpoint struct {
	Data     string `json:"data"`
	Checksum uint64 `json:"checksum"`
}

// checkpointData are what Data holds. Entries are kept as they will be written.
type checkpointData struct {
	Entries map[types.UID]json.RawMessage `json:"entries,omitempty"`
}

// checksum is upstream's: a hash of the words in which a Go value is dumped.
func checksum(data string) uint64 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(dump.ForHash(data)))
	return uint64(hash.Sum32())
}

// readCheckpoint reads a file. One that is not there holds nothing.
func readCheckpoint(path string) (map[types.UID]Resources, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFileSize {
		return nil, fmt.Errorf("it is no file of at most %d bytes", maxFileSize)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var outer checkpoint
	if err := json.Unmarshal(content, &outer); err != nil {
		return nil, fmt.Errorf("it is no checkpoint: %w", err)
	}
	if got := checksum(outer.Data); got != outer.Checksum {
		return nil, fmt.Errorf("its checksum is %d, and that of its data %d", outer.Checksum, got)
	}
	var inner struct {
		Entries map[types.UID]Resources `json:"entries"`
	}
	if err := json.Unmarshal([]byte(outer.Data), &inner); err != nil {
		return nil, fmt.Errorf("its data is no list of pods: %w", err)
	}
	return inner.Entries, nil
}

// writeCheckpoint replaces a file. It appears whole or not at all.
func writeCheckpoint(path string, pods map[types.UID]json.RawMessage) error {
	data, err := json.Marshal(checkpointData{pods})
	if err != nil {
		return err
	}
	content, err := json.Marshal(checkpoint{string(data), checksum(string(data))})
	if err != nil {
		return err
	}
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
