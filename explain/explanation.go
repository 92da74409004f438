package explain

import (
	"time"

	"github.com/berth-dev/berth/timeline"
)

// The version of the answer's JSON. Fields are only ever added within one version.
const (
	APIVersion = "explain.berth.dev/v1alpha1"
	Kind       = "Explanation"
)

// State is the one word for how things stand.
type State string

// The states of an answer.
const (
	Ready       State = "Ready"       // it does what it is for
	Succeeded   State = "Succeeded"   // it has done what it was for
	Waiting     State = "Waiting"     // it will go on, or somebody must help it
	Failed      State = "Failed"      // it will not go on by itself
	Terminating State = "Terminating" // it is being deleted
)

// Explanation says how things stand with one object.
type Explanation struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Object     timeline.Ref `json:"object"`
	State      State        `json:"state"`
	// Reason is the cause in one CamelCase word, for scripts.
	Reason string `json:"reason"`
	// Verdict is the cause in one sentence, for people.
	Verdict string `json:"verdict"`
	// Since is when the state began, as well as it is known.
	Since time.Time `json:"since,omitzero"`
	// HeldBy is who has to move before the object can: a component, a node, a Pod, a finalizer. Empty if unknown.
	HeldBy string `json:"heldBy,omitempty"`
	// NextChangeAt is when it will move by itself, if that is known.
	NextChangeAt time.Time `json:"movesAt,omitzero"`
	// TimeBreakdown says where the time of a Pod's start went; nil if no record tells.
	TimeBreakdown *TimeBreakdown `json:"account,omitempty"`
	// Stages are the object's way in the order in which the stages began, those of its claims included.
	Stages []Stage `json:"stages"`
	// Evidence is what the verdict rests on.
	Evidence []Evidence `json:"evidence,omitempty"`
	// Remedy is what a person can do about it, in the words of whoever failed; empty if nobody said.
	Remedy string `json:"remedy,omitempty"`
	// Next is a command that is safe to run and that helps; empty if nothing needs doing.
	Next string `json:"next,omitempty"`
	// Unseen says what could not be looked at, and why.
	Unseen []string `json:"unseen,omitempty"`

	crashed string // the container whose log belongs to the evidence
}

// Stage is one step of the way, with the object it belongs to and its time relative to the first step.
type Stage struct {
	timeline.Stage
	// Object is "Pod/name" or "PersistentVolumeClaim/name".
	Object string `json:"object"`
	// OffsetMs is the time from the first stage's start to this one's.
	OffsetMs float64 `json:"offsetMs"`
	// DurationMs is how long it took, or has taken until now if it is not done.
	DurationMs float64 `json:"durationMs"`
}

// Evidence is one fact: where it was read and what it said.
type Evidence struct {
	// Object is "Kind/name" of what was read.
	Object string `json:"object"`
	// Field is the path in the object, or "event".
	Field string `json:"field"`
	Text  string `json:"text"`
}
