// Package cluster measures how long `berth up` takes to a ready node, and what its processes weigh.
package cluster
