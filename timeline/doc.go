// Package timeline records what happened to an object, stage by stage, so that one can say at any time why
// it is not running yet.
//
// Every component of Berth that works on a Pod, a claim or a volume records here which stage began, when it ended, at which
// attempt, and with which error. Events, metrics, traces and package explain read this one record; no other package records
// the same facts.
//
// A [Recorder] keeps its records in memory. It is bounded in objects and in stages per object. A nil *Recorder is valid and
// records nothing, so that libraries need not check for one.
package timeline
