// Package runtimehelper builds the configurations that the container runtime gets for sandboxes and containers: it
// collects environment, mounts, devices, groups and resources of a Pod from the components that know them.
package runtimehelper
