// Package volume has the names under which the node agent's face speaks of volumes. What a plugin must do is said in
// package volume at the root of this module.
package volume
