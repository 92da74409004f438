// Package explain explains why a Pod is not running yet, or how it became ready; the same for claims, volumes, nodes and
// workloads.
//
// An [Explanation] is data: a verdict in one sentence, the stages that the object went through, the evidence for the
// verdict, and the next safe command. It is derived from API objects and from timeline's records. Without a record (a
// kubelet that is not Berth's, a Pod older than the running berth) it is derived from API objects alone, and names what
// is unknown.
package explain
