// Package objects provides the Secrets and ConfigMaps that this node's Pods refer to. Each object has one watch, which
// all its Pods share and which ends with the last of them.
//
// There is one watch per object because a node may read only what its Pods refer to, object by object. An object is
// first read with a plain GET: the API server answers it at once, whereas a consistent list or watch may wait for the
// API server's cache.
package objects
