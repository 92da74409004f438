package timeline

import (
	"cmp"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The stages of the way of a Pod and its claim, in the order in which they usually begin. Stages of one Pod
// overlap: its volumes, images and sandbox are prepared at the same time.
const (
	StageAccepted     = "Accepted"        // the API server stored the object
	StageProvisioning = "Provisioning"    // the provisioner's call, for a claim
	StageSaving       = "SavingVolume"    // writing the PersistentVolume, for a claim
	StageBound        = "Bound"           // claim and volume are bound
	StageExpanding    = "ExpandingVolume" // the driver makes a claim's volume larger; the subject is the size
	StageModifying    = "ModifyingVolume" // the driver applies a VolumeAttributesClass to a claim's volume; the subject is the class
	StageGrowing      = "GrowingOnNode"   // a node makes the file system of a claim's volume larger
	StageScheduled    = "Scheduled"       // a node was chosen
	StageSeen         = "SeenByKubelet"   // the kubelet saw the Pod
	StageAdmitted     = "Admitted"        // the kubelet admitted (or rejected) the Pod
	StageAttach       = "AttachVolume"    // a volume was attached to the node
	StageVolume       = "MountVolume"     // one volume was set up; the subject is the volume's name in the Pod
	StageDriver       = "DriverCall"      // a CSI driver was called; the subject is the call and the volume
	StageSandbox      = "Sandbox"         // RunPodSandbox, the network included
	StageImage        = "Image"           // the image is present; the subject is the container
	StageInit         = "InitContainer"   // an init container ran to its end
	StageCreate       = "CreateContainer" // CreateContainer over CRI
	StageStart        = "StartContainer"  // StartContainer over CRI
	StagePostStart    = "PostStartHook"   // the postStart hook ran
	StageProbe        = "Probe"           // from the container's start until its startup and readiness probes passed
	StageReady        = "Ready"           // the Pod became Ready
	StageStatus       = "StatusWritten"   // a status patch reached the API server
	StageObserved     = "ReadyObserved"   // a watch of the API server showed the Pod as ready
	StageStop         = "StopContainers"  // containers and sandbox are stopped
	StageUnmount      = "UnmountVolumes"  // the Pod's volumes are gone from the node
	StageUnmountOne   = "UnmountVolume"   // one try to take one volume down; the subject is its directory's name
	StageRemoved      = "RemovedFromAPI"  // the Pod's object is deleted
	StageReclaim      = "DeletingVolume"  // the provisioner's delete call, for a volume
	StageReconcile    = "Reconcile"       // a controller worked on the object
	StageStarting     = "Starting"        // a component of the cluster starts; the subject is its name
)

// ReasonStatusRefused is the reason of a status write that the API server has refused.
const ReasonStatusRefused = "StatusRefused"

// KindCluster is the kind of the record of a cluster's start. A Recorder never drops it.
const KindCluster = "Cluster"

// Ref names the object that a record is about. Records are kept by UID, so that an object deleted and created
// again under the same name has a record of its own.
type Ref struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// RefOf returns the Ref of an API object. The kind is a parameter because decoded objects do not have it.
func RefOf(kind string, obj metav1.Object) Ref {
	return Ref{Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID()}
}

// PodRef returns the Ref of a Pod.
func PodRef(pod *corev1.Pod) Ref { return RefOf("Pod", pod) }

// Stage is one step of an object's way. End is zero while the stage goes on.
type Stage struct {
	// Name is one of the Stage constants.
	Name string `json:"name"`
	// Subject is the part of the object that the stage is about: a container, a volume, a node. It may be empty.
	Subject string `json:"subject,omitempty"`
	// Owner is the component that did the work: "kubelet", "provision", "attachdetach", ….
	Owner string `json:"owner"`
	// Attempt counts from 1 within one name and subject.
	Attempt int `json:"attempt"`
	// Start and End carry Go's monotonic reading inside the process, so End.Sub(Start) is right even if the
	// clock was stepped.
	Start time.Time `json:"start"`
	End   time.Time `json:"end,omitzero"`
	// Error is the text of the error that ended the stage, empty on success.
	Error string `json:"error,omitempty"`
	// Reason is the error in one CamelCase word, empty if the error has none; see WithReason.
	Reason string `json:"reason,omitempty"`
	// Remedy is what a user can do about the error; see WithReason.
	Remedy string `json:"remedy,omitempty"`
	// Cause names the object that the stage works for or waits for, if it is not the record's own.
	Cause *Ref `json:"cause,omitempty"`
	// WaitMs is the part of the stage, in milliseconds, that it waited in a queue or for a rate limiter.
	WaitMs float64 `json:"waitMs,omitempty"`
}

// Done reports whether the stage has ended.
func (s Stage) Done() bool { return !s.End.IsZero() }

// Change is one thing that was recorded: a stage began, or ended, or was marked (then it has begun and ended).
type Change struct {
	Ref   Ref   `json:"ref"`
	Stage Stage `json:"stage"`
}

// reasonError is an error with its reason and its remedy.
type reasonError struct {
	error
	reason, remedy string
}

// Unwrap returns the error without its reason and remedy, for errors.Is and errors.As.
func (r reasonError) Unwrap() error { return r.error }

// WithReason adds to an error its reason, a CamelCase word for programs, and what a user can do about it. Either may be
// empty. The error's text stays as it is; Span.End and Recorder.Mark put both into the stage, where the outermost reason
// and the outermost remedy of a chain count. A nil error stays nil.
func WithReason(err error, reason, remedy string) error {
	if err == nil {
		return nil
	}
	return reasonError{err, reason, remedy}
}

// setError puts an error into the stage.
func (s *Stage) setError(err error) {
	if err == nil {
		return
	}
	s.Error = err.Error()
	for rest := err; rest != nil; {
		var r reasonError
		if !errors.As(rest, &r) {
			return
		}
		s.Reason, s.Remedy = cmp.Or(s.Reason, r.reason), cmp.Or(s.Remedy, r.remedy)
		rest = r.error
	}
}

// Record has the stages of one object. It is a copy that the caller owns.
type Record struct {
	Ref    Ref     `json:"ref"`
	Stages []Stage `json:"stages"`
	// Dropped counts stages that were forgotten because the object had too many.
	Dropped int `json:"dropped,omitempty"`
	// Trace is the ID of the trace that the stages are sent as; empty if they are not.
	Trace string `json:"trace,omitempty"`
}
