// Package config tells the node agent which Pods are its own.
//
// The API source lists and watches the Pods bound to one node and turns what it sees into typed updates, by
// UID: a Pod is added, its wanted state changed, its deletion was asked for, only its status changed, or it is
// gone. The source also says when it has delivered everything once, before which nothing may be cleaned up.
//
// Static Pods come from files and from a URL. Decode makes Pods of manifests as the API server would have, File and
// HTTP follow where manifests lie, and Static turns what they find into the same updates, one Pod of a name at a time.
package config
