// Package resourcename says of which kind a resource is by its name: huge pages, or an extended resource.
package resourcename
