// Package cluster starts and stops the Berth cluster that the suite runs on.
package cluster
