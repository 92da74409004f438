// Package timeline records what happened to an object, stage by stage, so that one can say at any time why
// it is not running yet.
//
// Every part of Berth that moves a Pod, a claim or a volume forward writes here: which stage began, when it
// ended, at which attempt, and with which error. Events, metrics, traces and package explain are readers of
// this one record; nothing else keeps a second account of the same facts.
//
// A [Recorder] is memory only. It is bounded in objects and in stages per object, and a nil *Recorder is a
// valid recorder that records nothing, so that libraries can take one without asking whether it is there.
package timeline
