package up

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/internal/atomicfile"
)

// sumKey is the key of the checksum in the file of a cluster's state: one bit that flips in an address or a name would else make
// another cluster of it.
const sumKey = "checksum"

// write replaces the file at path by the state and its checksum.
func (s *state) write(path string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's state: %w", err)
	}
	sum, err := sumOf(data)
	if err != nil {
		return fmt.Errorf("encode the cluster's state: %w", err)
	}
	data = fmt.Appendf(bytes.TrimSuffix(data, []byte("\n}")), ",\n  %q: %q\n}\n", sumKey, sum)
	return atomicfile.Write(path, data, 0o600)
}

// checkSum compares the content of a state file with its checksum. A file of a version that wrote none is not checked.
func checkSum(data []byte) error {
	var own struct {
		Sum *string `json:"checksum"`
	}
	if err := json.Unmarshal(data, &own); err != nil || own.Sum == nil {
		return err
	}
	sum, err := sumOf(data)
	if err == nil && sum != *own.Sum {
		err = errors.New("its content does not match its checksum")
	}
	return err
}

// sumOf returns the checksum of everything but the checksum in an object of JSON, with the fields that only newer versions know.
func sumOf(data []byte) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return "", err
	}
	delete(fields, sumKey)
	canonical, err := json.Marshal(fields) // sorted, and without spaces
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:16]), nil
}
