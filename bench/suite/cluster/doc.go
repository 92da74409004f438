// Package cluster measures `berth up`: how long it takes to a ready node and to resolved names, and what CPU time and memory its
// processes use while nothing happens.
package cluster
