// Package fsgroup changes the group of a volume's files to a Pod's securityContext.fsGroup.
package fsgroup
