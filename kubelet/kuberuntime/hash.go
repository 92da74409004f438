package kuberuntime

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// HashContainer is the hash by which a changed container definition is noticed. It covers name and image only: no
// other field of a running container may be changed. It is upstream's value, bit for bit, so that containers need
// not restart when one kubelet takes over from the other.
func HashContainer(c *corev1.Container) uint64 {
	fields, _ := json.Marshal(map[string]string{"name": c.Name, "image": c.Image}) // strings: cannot fail
	h := fnv.New32a()
	fmt.Fprint(h, dump.ForHash(fields))
	return uint64(h.Sum32())
}
