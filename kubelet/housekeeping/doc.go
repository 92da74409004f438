// Package housekeeping keeps the node's disk from filling up: it rotates container logs, removes unused images, links
// container logs for log collectors, and removes volumes, cgroups, directories and logs of Pods that no longer exist.
package housekeeping
