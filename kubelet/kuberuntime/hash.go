package kuberuntime

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// HashContainer returns the hash that shows a changed container definition. It covers name and image only: no other
// field of a running container may be changed. The value is upstream's, bit for bit, so that containers keep running
// when one kubelet replaces the other.
func HashContainer(c *corev1.Container) uint64 {
	fields, _ := json.Marshal(map[string]string{"name": c.Name, "image": c.Image}) // strings: cannot fail
	h := fnv.New32a()
	fmt.Fprint(h, dump.ForHash(fields))
	return uint64(h.Sum32())
}
