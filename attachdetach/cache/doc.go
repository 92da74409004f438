// Package cache holds the two worlds of the attach/detach controller: which volumes should be attached to which nodes,
// and for which Pods ([DesiredStateOfWorld]), and which are or may be ([ActualStateOfWorld]).
//
// Both are plain memory, safe for concurrent use, and tell whoever subscribed which pair of a volume and a node has
// changed, so that work follows change. No question about one pair costs more for there being many others.
package cache
