package explain

import (
	"time"

	"github.com/berth-dev/berth/timeline"
)

// The version and kind of an Explanation's JSON. Within one version fields are only added.
const (
	APIVersion = "explain.berth.dev/v1alpha1"
	Kind       = "Explanation"
)

// State is an object's state in one word.
type State string

// The states of an object.
const (
	Ready       State = "Ready"       // it works
	Succeeded   State = "Succeeded"   // it has ended successfully
	Waiting     State = "Waiting"     // it continues by itself, or after a user's action
	Failed      State = "Failed"      // it does not continue by itself
	Terminating State = "Terminating" // it is being deleted
)

// Explanation describes the state of one object and its cause. It has many fields because it is also the JSON document that
// scripts read, which is flat.
type Explanation struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Object     timeline.Ref `json:"object"`
	State      State        `json:"state"`
	// Reason is the cause in one CamelCase word, for scripts.
	Reason string `json:"reason"`
	// Verdict is the cause in one sentence, for people.
	Verdict string `json:"verdict"`
	// Since is when the state began, as far as known.
	Since time.Time `json:"since,omitzero"`
	// HeldBy names what the object waits for: a component, a node, a Pod, a finalizer, or "you". Empty if unknown.
	HeldBy string `json:"heldBy,omitempty"`
	// NextChangeAt is when the state is expected to change by itself; zero if unknown.
	NextChangeAt time.Time `json:"movesAt,omitzero"`
	// TimeBreakdown says where the time of a Pod's start went; nil without a record.
	TimeBreakdown *TimeBreakdown `json:"account,omitempty"`
	// Stages are the stages that the object and its claims went through, in the order of their starts.
	Stages []Stage `json:"stages"`
	// Trace is the ID of the OpenTelemetry trace of a Pod's start; empty if the berth that recorded it sends none.
	Trace string `json:"trace,omitempty"`
	// Evidence are the facts that the verdict is derived from.
	Evidence []Evidence `json:"evidence,omitempty"`
	// Remedy says what to do about it, in the words of the component that failed; empty if unknown.
	Remedy string `json:"remedy,omitempty"`
	// Next is a safe and helpful command; empty if nothing needs to be done.
	Next string `json:"next,omitempty"`
	// Unseen names what could not be read, and why.
	Unseen []string `json:"unseen,omitempty"`

	crashed string // the container whose log belongs to the evidence
}

// Stage is a stage with its object and its time relative to the first stage.
type Stage struct {
	timeline.Stage
	// Object is "Pod/name" or "PersistentVolumeClaim/name".
	Object string `json:"object"`
	// OffsetMs is the time from the first stage's start to this one's.
	OffsetMs float64 `json:"offsetMs"`
	// DurationMs is its duration, up to now if it is not done.
	DurationMs float64 `json:"durationMs"`
}

// Evidence is one fact and its source.
type Evidence struct {
	// Object is "Kind/name" of the source.
	Object string `json:"object"`
	// Field is the path in the object, or "event".
	Field string `json:"field"`
	Text  string `json:"text"`
}
