package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

// Records reads timeline's records: those of this process, or those of a running berth over its socket.
type Records interface {
	// Record returns the record of the object; false if there is none.
	Record(ctx context.Context, uid types.UID) (timeline.Record, bool, error)
}

// facts is the input of the verdict on a Pod. It has many methods because each one recognizes one cause or reads one kind of
// object, and most causes follow from several kinds.
type facts struct {
	now        time.Time
	pod        *corev1.Pod
	claims     []claim
	attach     []attachFacts
	heartbeats map[string]time.Time // last heartbeats of other nodes that hold a volume of the Pod's
	node       *corev1.Node
	nodes      []corev1.Node // all, while none is chosen
	events     []corev1.Event
	record     timeline.Record
	records    []timeline.Record // of the claims
	// missing are objects that the Pod references and that do not exist, as "configmap NAME", "secret NAME".
	missing map[string]bool
	unseen  []string
}

// claim is one claim of the Pod; object is nil if there is none of that name.
type claim struct {
	volume string
	name   string
	object *corev1.PersistentVolumeClaim
	facts  *claimFacts
}

// Pod explains one Pod. It returns an error if the Pod cannot be read.
func Pod(ctx context.Context, src Source, namespace, name string) (*Explanation, error) {
	client, began := src.Client, src.now()
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	f := &facts{now: src.now(), pod: pod, missing: make(map[string]bool)}
	f.readClaims(ctx, client)
	f.readNode(ctx, client)
	f.events = readEvents(ctx, client, namespace, pod.UID, f.addUnseen)
	f.readRecords(ctx, src.Records)
	if pod.Spec.NodeName != "" && !f.started() {
		f.readAttach(ctx, client)
		f.readMissing(ctx, client)
	}
	explanation := f.explain()
	explanation.noteSlowAPI(began, f.now)
	f.addLog(ctx, client, explanation)
	return explanation, nil
}

// addUnseen records that something could not be read. An object that does not exist is a fact, and not unseen.
func (f *facts) addUnseen(what string, err error) {
	f.unseen = append(f.unseen, fmt.Sprintf("%s: %v", what, err))
}

func (f *facts) readClaims(ctx context.Context, client kubernetes.Interface) {
	for _, volume := range f.pod.Spec.Volumes {
		name := claimName(f.pod, &volume)
		if name == "" {
			continue
		}
		c := claim{volume: volume.Name, name: name}
		object, err := client.CoreV1().PersistentVolumeClaims(f.pod.Namespace).Get(ctx, c.name, metav1.GetOptions{})
		switch {
		case err == nil:
			c.object = object
			c.facts = readClaimFacts(ctx, client, object, f.addUnseen)
			c.facts.now, c.facts.users = f.now, []string{f.pod.Name}
		case !apierrors.IsNotFound(err):
			f.addUnseen("persistentvolumeclaim "+c.name, err)
			continue
		}
		f.claims = append(f.claims, c)
	}
}

// claimName is the name of the claim behind a volume of the Pod; empty for other volumes.
func claimName(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, volume)
	}
	return ""
}

func claimNames(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		if name := claimName(pod, &pod.Spec.Volumes[i]); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func (f *facts) readNode(ctx context.Context, client kubernetes.Interface) {
	if f.pod.Spec.NodeName == "" {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			f.addUnseen("nodes", err)
			return
		}
		f.nodes = nodes.Items
		return
	}
	node, err := client.CoreV1().Nodes().Get(ctx, f.pod.Spec.NodeName, metav1.GetOptions{})
	if err == nil {
		f.node = node
	} else if !apierrors.IsNotFound(err) {
		f.addUnseen("node "+f.pod.Spec.NodeName, err)
	}
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
		f.unseen = append(f.unseen, "stages: no running berth to query; times come from the API, to the second")
		return
	}
	record, found, err := records.Record(ctx, f.pod.UID)
	if err != nil {
		f.addUnseen("stages", err)
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
			c.facts.record = record
			f.records = append(f.records, record)
		}
	}
}

// readMissing finds the ConfigMaps and Secrets that the Pod references and that do not exist. The data of Secrets never
// becomes part of an explanation.
func (f *facts) readMissing(ctx context.Context, client kubernetes.Interface) {
	look := func(kind, name string, err error) {
		switch {
		case apierrors.IsNotFound(err):
			f.missing[kind+" "+name] = true
		case err != nil:
			f.addUnseen(kind+" "+name, err)
		}
	}
	configMaps, secrets := references(f.pod)
	for name := range configMaps {
		_, err := client.CoreV1().ConfigMaps(f.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		look("configmap", name, err)
	}
	for name := range secrets {
		_, err := client.CoreV1().Secrets(f.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		look("secret", name, err)
	}
}

// references returns the ConfigMaps and Secrets without which the Pod does not start.
func references(pod *corev1.Pod) (configMaps, secrets map[string]bool) {
	configMaps, secrets = make(map[string]bool), make(map[string]bool)
	note := func(set map[string]bool, name string, optional *bool) {
		if name != "" && (optional == nil || !*optional) {
			set[name] = true
		}
	}
	for i := range pod.Spec.Volumes {
		source := &pod.Spec.Volumes[i].VolumeSource
		if source.ConfigMap != nil {
			note(configMaps, source.ConfigMap.Name, source.ConfigMap.Optional)
		}
		if source.Secret != nil {
			note(secrets, source.Secret.SecretName, source.Secret.Optional)
		}
		if source.Projected == nil {
			continue
		}
		for _, part := range source.Projected.Sources {
			if part.ConfigMap != nil {
				note(configMaps, part.ConfigMap.Name, part.ConfigMap.Optional)
			}
			if part.Secret != nil {
				note(secrets, part.Secret.Name, part.Secret.Optional)
			}
		}
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, env := range container.EnvFrom {
			if env.ConfigMapRef != nil {
				note(configMaps, env.ConfigMapRef.Name, env.ConfigMapRef.Optional)
			}
			if env.SecretRef != nil {
				note(secrets, env.SecretRef.Name, env.SecretRef.Optional)
			}
		}
		for _, env := range container.Env {
			if from := env.ValueFrom; from != nil && from.ConfigMapKeyRef != nil {
				note(configMaps, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Optional)
			} else if from != nil && from.SecretKeyRef != nil {
				note(secrets, from.SecretKeyRef.Name, from.SecretKeyRef.Optional)
			}
		}
	}
	for _, secret := range pod.Spec.ImagePullSecrets {
		note(secrets, secret.Name, nil)
	}
	return configMaps, secrets
}

const (
	logLines = 3
	logBytes = 4096
)

// addLog adds the last log lines of a crashing container to the evidence.
func (f *facts) addLog(ctx context.Context, client kubernetes.Interface, explanation *Explanation) {
	if explanation.crashed == "" {
		return
	}
	status := podutil.FindStatusOfAny(&f.pod.Status, explanation.crashed)
	previous := status != nil && status.State.Terminated == nil
	data, err := client.CoreV1().Pods(f.pod.Namespace).GetLogs(f.pod.Name, &corev1.PodLogOptions{
		Container: explanation.crashed, Previous: previous, TailLines: ptr.To[int64](logLines), LimitBytes: ptr.To[int64](logBytes),
	}).DoRaw(ctx)
	if err != nil {
		explanation.Unseen = append(explanation.Unseen, fmt.Sprintf("log of container %s: %v", explanation.crashed, err))
		return
	}
	for line := range strings.Lines(string(data)) {
		explanation.Evidence = append(explanation.Evidence, Evidence{"Pod/" + f.pod.Name, "log of " + explanation.crashed, strings.TrimRight(line, "\r\n")})
	}
}

// lastEvent is the newest event of one of the reasons.
func (f *facts) lastEvent(reasons ...string) *corev1.Event { return lastEvent(f.events, reasons...) }

// openStage returns the newest stage of that name that has not succeeded: it is in progress, or failed and was not
// followed by a success.
func (f *facts) openStage(name string) *timeline.Stage {
	succeeded := make(map[string]bool)
	for i := len(f.record.Stages) - 1; i >= 0; i-- {
		stage := &f.record.Stages[i]
		if stage.Name != name || succeeded[stage.Subject] {
			continue
		}
		if !stage.Done() || stage.Error != "" {
			return stage
		}
		succeeded[stage.Subject] = true
	}
	return nil
}

// lastFailure is the newest stage of that name and subject that ended with an error; nil if none did.
func (f *facts) lastFailure(name, subject string) *timeline.Stage {
	for i := len(f.record.Stages) - 1; i >= 0; i-- {
		stage := &f.record.Stages[i]
		if stage.Name == name && stage.Subject == subject && stage.Error != "" {
			return stage
		}
	}
	return nil
}

// lastErrorOf is the newest error of a stage of that name, whatever its subject.
func (f *facts) lastErrorOf(name string) string {
	for i := len(f.record.Stages) - 1; i >= 0; i-- {
		if stage := f.record.Stages[i]; stage.Name == name && stage.Error != "" {
			return stage.Error
		}
	}
	return ""
}

// hangThreshold is the duration after which a call that is retried after failures counts as hanging.
const hangThreshold = time.Second

// openDriverCall returns the CSI call in progress. A retry after a failure is returned only if it hangs; first says that
// no call failed before.
func (f *facts) openDriverCall(first bool) *timeline.Stage {
	for i := len(f.record.Stages) - 1; i >= 0; i-- {
		stage := &f.record.Stages[i]
		if stage.Name == timeline.StageDriver && !stage.Done() && (first || f.now.Sub(stage.Start) >= hangThreshold) {
			return stage
		}
	}
	return nil
}

// describeCall describes a call in progress.
func (f *facts) describeCall(call *timeline.Stage) string {
	name, volume, _ := strings.Cut(call.Subject, " ")
	return fmt.Sprintf("%s was called for %s of volume %s %s ago and has not responded", call.Owner, name, volume, f.ago(call.Start))
}

func driverRemedy(call *timeline.Stage) string {
	return "if it does not respond, see the log of the node plugin of " + call.Owner + " on this node"
}
