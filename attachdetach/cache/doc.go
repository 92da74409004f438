// Package cache holds the desired and the actual state of the world: which volumes should be attached to which nodes,
// and for which Pods ([DesiredStateOfWorld]), and which are or may be ([ActualStateOfWorld]).
//
// Both are plain memory, safe for concurrent use, and notify subscribers of each pair of a volume and a node that
// changes. The cost of a query about one pair does not depend on the number of pairs.
package cache
