package checkpoint

import (
	"hash/fnv"
	"strings"

	"k8s.io/utils/dump"
)

// Sum is the checksum in a state file.
type Sum uint64

// Checksum returns upstream's checksum of a value: the hash of its dump, in which names of Go types occur. names replaces
// those of this program's types by those of upstream's: pairs of an old name, with its package, and a new one. Sum is replaced
// without.
func Checksum(value any, names ...string) uint64 {
	text := strings.NewReplacer(append(names, "(checkpoint.Sum)", "(checksum.Checksum)")...).Replace(dump.ForHash(value))
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(text))
	return uint64(hash.Sum32())
}
