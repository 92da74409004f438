package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-dev/berth/timeline"
)

// Records is where timeline's records are read: in the same process or over a running berth's socket.
type Records interface {
	// Record returns what is known of the object; false if nothing is.
	Record(ctx context.Context, uid types.UID) (timeline.Record, bool, error)
}

// facts is all that a verdict on a Pod is drawn from, read once.
type facts struct {
	now     time.Time
	pod     *corev1.Pod
	claims  []claim
	node    *corev1.Node
	nodes   int
	events  []corev1.Event
	record  timeline.Record
	records []timeline.Record // of the claims
	unseen  []string
}

// claim is one claim of the Pod, by its name; object and class are nil if they are not there.
type claim struct {
	volume string
	name   string
	object *corev1.PersistentVolumeClaim
	class  *storagev1.StorageClass
	// className is what the claim asks for; empty for the default class that is not there, too.
	className string
}

// Pod explains one Pod. An error means that the question could not be answered at all: no such Pod, or no API.
func Pod(ctx context.Context, client kubernetes.Interface, records Records, namespace, name string, now time.Time) (*Answer, error) {
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	f := &facts{now: now, pod: pod}
	f.readClaims(ctx, client)
	f.readNode(ctx, client)
	f.readEvents(ctx, client)
	f.readRecords(ctx, records)
	return f.answer(), nil
}

// miss notes that something could not be looked at. A missing object is a fact, not a miss.
func (f *facts) miss(what string, err error) {
	f.unseen = append(f.unseen, fmt.Sprintf("%s: %v", what, err))
}

func (f *facts) readClaims(ctx context.Context, client kubernetes.Interface) {
	for _, volume := range f.pod.Spec.Volumes {
		c := claim{volume: volume.Name}
		switch {
		case volume.PersistentVolumeClaim != nil:
			c.name = volume.PersistentVolumeClaim.ClaimName
		case volume.Ephemeral != nil:
			c.name = ephemeral.VolumeClaimName(f.pod, &volume)
		default:
			continue
		}
		object, err := client.CoreV1().PersistentVolumeClaims(f.pod.Namespace).Get(ctx, c.name, metav1.GetOptions{})
		switch {
		case err == nil:
			c.object = object
			if object.Spec.StorageClassName != nil {
				c.className = *object.Spec.StorageClassName
			}
		case !apierrors.IsNotFound(err):
			f.miss("persistentvolumeclaim "+c.name, err)
			continue
		}
		if c.className != "" {
			class, err := client.StorageV1().StorageClasses().Get(ctx, c.className, metav1.GetOptions{})
			if err == nil {
				c.class = class
			} else if !apierrors.IsNotFound(err) {
				f.miss("storageclass "+c.className, err)
			}
		}
		f.claims = append(f.claims, c)
	}
}

func (f *facts) readNode(ctx context.Context, client kubernetes.Interface) {
	if f.pod.Spec.NodeName == "" {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			f.miss("nodes", err)
			return
		}
		f.nodes = len(nodes.Items)
		return
	}
	f.nodes = 1
	node, err := client.CoreV1().Nodes().Get(ctx, f.pod.Spec.NodeName, metav1.GetOptions{})
	if err == nil {
		f.node = node
	} else if !apierrors.IsNotFound(err) {
		f.miss("node "+f.pod.Spec.NodeName, err)
	}
}

func (f *facts) readEvents(ctx context.Context, client kubernetes.Interface) {
	list, err := client.CoreV1().Events(f.pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(f.pod.UID)).String(),
	})
	if err != nil {
		f.miss("events", err)
		return
	}
	f.events = list.Items
	slices.SortStableFunc(f.events, func(a, b corev1.Event) int {
		return cmp.Compare(eventTime(a).UnixNano(), eventTime(b).UnixNano())
	})
}

func eventTime(event corev1.Event) time.Time {
	switch {
	case event.Series != nil:
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	default:
		return event.EventTime.Time
	}
}

func (f *facts) readRecords(ctx context.Context, records Records) {
	if records == nil {
		f.unseen = append(f.unseen, "stages: no running berth to ask; times come from the API, to the second")
		return
	}
	record, found, err := records.Record(ctx, f.pod.UID)
	if err != nil {
		f.miss("stages", err)
		return
	}
	if !found {
		f.unseen = append(f.unseen, "stages: the running berth has no record of this Pod; times come from the API, to the second")
	}
	f.record = record
	for _, c := range f.claims {
		if c.object == nil {
			continue
		}
		if record, found, err := records.Record(ctx, c.object.UID); err == nil && found {
			f.records = append(f.records, record)
		}
	}
}

// lastEvent is the newest event of one of the reasons.
func (f *facts) lastEvent(reasons ...string) *corev1.Event {
	for i := len(f.events) - 1; i >= 0; i-- {
		if slices.Contains(reasons, f.events[i].Reason) {
			return &f.events[i]
		}
	}
	return nil
}

// openStage is the newest stage of that name that has not succeeded: it goes on, or ended with an error and was
// not followed by a success.
func (f *facts) openStage(name string) *timeline.Stage {
	settled := make(map[string]bool)
	for i := len(f.record.Stages) - 1; i >= 0; i-- {
		stage := &f.record.Stages[i]
		if stage.Name != name || settled[stage.Subject] {
			continue
		}
		if !stage.Done() || stage.Error != "" {
			return stage
		}
		settled[stage.Subject] = true
	}
	return nil
}

// lastError is the newest error of a stage of that name and subject.
func (f *facts) lastError(name, subject string) string {
	for i := len(f.record.Stages) - 1; i >= 0; i-- {
		stage := f.record.Stages[i]
		if stage.Name == name && stage.Subject == subject && stage.Error != "" {
			return stage.Error
		}
	}
	return ""
}
