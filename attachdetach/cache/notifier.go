package cache

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VolumeNode names an attachment: a volume and a node.
type VolumeNode struct {
	Volume corev1.UniqueVolumeName
	Node   types.NodeName
}

// String is the pair as it appears in logs.
func (p VolumeNode) String() string { return string(p.Volume) + " on " + string(p.Node) }

// Notifier is a store that notifies subscribers of its changes. A store that is no Notifier is only read periodically.
type Notifier interface {
	// Subscribe registers a function that is called for each pair that changes. A pair without volume means that
	// the list of attached volumes in the node's status is out of date. Subscribe must be called before the store is
	// shared. f is called with the store locked: it must return at once and must not call the store.
	Subscribe(f func(VolumeNode))
}

// subscribers is the list that Subscribe fills. It is written before the store is shared and read afterwards.
type subscribers []func(VolumeNode)

func (s subscribers) notify(pair VolumeNode) {
	for _, f := range s {
		f(pair)
	}
}

// Count is how many volumes of one plugin there are.
type Count map[string]int

func (c Count) add(plugin string, n int) {
	if c[plugin] += n; c[plugin] == 0 {
		delete(c, plugin)
	}
}
