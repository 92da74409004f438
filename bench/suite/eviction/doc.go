// Package eviction measures how soon a kubelet ends a Pod when its node runs short of memory or disk.
package eviction
