// Package fsgroup gives the files of a volume to the group that a Pod's securityContext.fsGroup names.
package fsgroup
