// Package local provisions directories of one node as PersistentVolumes of type local.
//
// A volume is the directory ROOT/VOLUME-NAME, bound to its node by node affinity. A project quota enforces the claim's size
// where the file system supports that; otherwise an event on the claim reports that it does not. Directories are created and
// removed through file descriptors and never through a path that a Pod could have changed: nothing outside the root, behind a
// symbolic link or across a mount is touched.
package local
