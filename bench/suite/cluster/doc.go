// Package cluster measures how long `berth up` takes to a ready node, and how much memory its processes use.
package cluster
