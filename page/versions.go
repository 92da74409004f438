package page

import "k8s.io/apimachinery/pkg/types"

// maxVersions bounds how many objects have a version of their own.
const maxVersions = 16 << 10

// versions has a number for each object that each of its changes raises. Objects come and go as long as a page is open, so the
// numbers come from one counter, and the map is emptied when it is large: each object has the counter's value of that instant then,
// as if it had changed once. The zero value is ready.
type versions struct {
	changes, emptied uint64
	of               map[types.UID]uint64 // the counter's value at the last change since it was emptied
}

// raise notes a change of an object, and reports whether it has raised the versions of all.
func (v *versions) raise(uid types.UID) bool {
	if len(v.of) >= maxVersions {
		v.raiseAll()
		return true
	}
	v.changes++
	if v.of == nil {
		v.of = make(map[types.UID]uint64)
	}
	v.of[uid] = v.changes
	return false
}

// raiseAll notes a change of each object.
func (v *versions) raiseAll() {
	v.changes++
	v.emptied = v.changes
	clear(v.of)
}

func (v *versions) get(uid types.UID) uint64 {
	if version, ok := v.of[uid]; ok {
		return version
	}
	return v.emptied
}
