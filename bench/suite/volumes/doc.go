// Package volumes measures what volumes add to the start of a Pod, and what mounted volumes cost an idle node.
package volumes
