// Package snapshots measures how long the CSI driver takes for snapshots, restores and clones of a large volume, on a file system that shares
// blocks and on one that does not.
package snapshots
