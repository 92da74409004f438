// Package objects is the Secrets and ConfigMaps that the Pods of this node refer to, each followed by one watch of
// its own that all its Pods share and that ends with the last of them.
//
// One watch per object, because a node may read only what its Pods refer to, object by object. The first answer is a
// plain GET: it comes as soon as the API server has it, whereas a list or a watch that promises fresh data may wait
// for the API server's cache.
package objects
