// Package config delivers the Pods of this node from their sources.
//
// The API source lists and watches the Pods bound to the node and turns them into typed changes, by UID: a Pod is added,
// its desired state changed, its deletion was requested, only its status changed, or it is gone. A source also reports
// when it has delivered all its Pods once, before which nothing may be cleaned up.
//
// Static Pods come from files and from a URL. Decode reads the Pods of a manifest and completes them as the API server
// would, File and HTTP watch the places of manifests, and Static turns their Pods into the same changes, with one Pod of
// a name at a time.
package config
