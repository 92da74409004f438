// Package local provisions directories of one node as PersistentVolumes of type local.
//
// A volume is the directory ROOT/NAME-OF-THE-VOLUME, tied to its node by node affinity. Where the
// filesystem has project quotas the claim's size is enforced by one; where it has not, an event on the
// claim says so. Directories are made and removed through file descriptors and never through a path that a
// Pod could have changed: nothing outside the root, behind a symbolic link or across a mount is touched.
package local
