// Package events sends the shim's events to containerd, in their order.
//
// containerd may be away. An event is tried again for about a minute then and dropped; a containerd that starts reads the state of
// each container from its shim, so that nothing depends on old events.
package events
