package config

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/berth-dev/berth/internal/quantity"
)

// MaxManifest is the largest manifest that is read, in bytes.
const MaxManifest = 10 << 20

// The values of SourceAnnotation for static Pods.
const (
	// SourceFile is for Pods of a file or directory.
	SourceFile = "file"
	// SourceHTTP is for Pods of a URL.
	SourceHTTP = "http"
)

// SourceInfo describes the source of a manifest, which is part of its Pods' identity.
type SourceInfo struct {
	// Source is SourceFile or SourceHTTP.
	Source string
	// Location is the file's path or the URL. The same manifest at two locations is two Pods.
	Location string
	// NodeName is appended to the Pods' names and set as their node; if it is empty, names stay unchanged.
	NodeName string
}

// anyManifest has the fields of all kinds of manifests: of a Pod, and of a list of them.
type anyManifest struct {
	corev1.Pod `json:",inline"`
	Items      []corev1.Pod `json:"items"`
}

// errEmpty says that a manifest is empty, as a file is between its creation and the first write.
var errEmpty = errors.New("the manifest is empty")

var manifests = newManifests()

func newManifests() runtime.Decoder {
	scheme := runtime.NewScheme()
	// Only core/v1 is known, and the registration of a static list of types cannot fail.
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// Decode reads the Pods of a manifest: one v1 Pod, PodList or List of Pods, in YAML or JSON. Unknown fields are errors,
// missing ones get the API server's defaults, and what cannot work without an API server is rejected with its field's
// name. A Pod without a UID gets one that is computed from the manifest's content and source, so that an edited manifest
// is another Pod.
func Decode(data []byte, source SourceInfo) ([]*corev1.Pod, error) {
	if len(data) > MaxManifest {
		return nil, fmt.Errorf("manifest is larger than %d MiB", MaxManifest>>20)
	}
	document, err := onlyDocument(data)
	if err != nil {
		return nil, err
	}
	if err := quantity.CheckDocument[anyManifest](document); err != nil {
		return nil, fmt.Errorf("decode manifest: %w", err)
	}
	items, err := decodeItems(document)
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, 0, len(items))
	seen := map[types.NamespacedName]bool{}
	for i := range items {
		pod := &items[i]
		if err := applySource(pod, source); err != nil {
			return nil, fmt.Errorf("pod %q: %w", pod.Name, err)
		}
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if seen[name] {
			return nil, fmt.Errorf("pod %q: metadata.name: the manifest holds two pods of this name", pod.Name)
		}
		seen[name] = true
		pods = append(pods, pod)
	}
	return pods, nil
}

// onlyDocument returns the one YAML or JSON document of the manifest.
func onlyDocument(data []byte) ([]byte, error) {
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var found []byte
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		if isEmptyDocument(document) {
			continue
		}
		if found != nil {
			return nil, errors.New("the manifest holds several YAML documents: put each pod into a file of its own, or " +
				"all into one object of kind PodList")
		}
		found = document
	}
	if found == nil {
		return nil, errEmpty
	}
	return found, nil
}

// isEmptyDocument reports whether a document is made of comments, separators and white space.
func isEmptyDocument(document []byte) bool {
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// decodeItems decodes the document's Pods.
func decodeItems(document []byte) ([]corev1.Pod, error) {
	object, kind, err := manifests.Decode(document, nil, nil)
	var meta metav1.TypeMeta
	if runtime.IsNotRegisteredError(err) && yaml.Unmarshal(document, &meta) == nil {
		return nil, unsupportedKindError(meta.Kind) // the error itself is about Go types
	}
	if err != nil {
		return nil, fmt.Errorf("decode manifest: %w", err)
	}
	switch object := object.(type) {
	case *corev1.Pod:
		return []corev1.Pod{*object}, nil
	case *corev1.PodList:
		return object.Items, nil
	case *corev1.List:
		return listItems(object)
	}
	return nil, unsupportedKindError(kind.Kind)
}

func unsupportedKindError(kind string) error {
	return fmt.Errorf("decode manifest: kind %s is not run here, only Pod and lists of Pods are", kind)
}

func listItems(list *corev1.List) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	for i := range list.Items {
		object, kind, err := manifests.Decode(list.Items[i].Raw, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("decode items[%d]: %w", i, err)
		}
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return nil, fmt.Errorf("decode items[%d]: kind %s is not run here, only Pod is", i, kind.Kind)
		}
		pods = append(pods, *pod)
	}
	return pods, nil
}

// applySource validates and completes a decoded Pod and gives it its identity.
func applySource(pod *corev1.Pod, source SourceInfo) error {
	// A status in the manifest is ignored.
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = nil, nil
	pod.OwnerReferences, pod.Finalizers, pod.ManagedFields, pod.ResourceVersion = nil, nil, nil, ""
	if pod.GenerateName != "" {
		return errors.New("metadata.generateName: the kubelet does not generate names, set metadata.name")
	}
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	setDefaults(pod)
	if err := setUID(pod, source); err != nil {
		return err
	}
	if source.NodeName != "" {
		pod.Name += "-" + strings.ToLower(source.NodeName)
		pod.Spec.NodeName = source.NodeName
	}
	if source.Source == SourceFile {
		tolerateNoExecute(&pod.Spec)
	}
	if err := validate(pod); err != nil {
		return err
	}
	annotations := make(map[string]string, len(pod.Annotations)+2)
	for key, value := range pod.Annotations {
		if !isLocalAnnotation(key) {
			annotations[key] = value
		}
	}
	annotations[SourceAnnotation], annotations[HashAnnotation] = source.Source, string(pod.UID)
	pod.Annotations = annotations
	return nil
}

// tolerateNoExecute has the Pod stay whatever taints its node gets. A toleration of the manifest for all of them that ends is replaced.
func tolerateNoExecute(spec *corev1.PodSpec) {
	always := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	spec.Tolerations = slices.DeleteFunc(spec.Tolerations, func(t corev1.Toleration) bool { return t.MatchToleration(&always) })
	spec.Tolerations = append(spec.Tolerations, always)
}

// setUID sets the UID of a Pod without one. It changes with everything that identifies the Pod.
func setUID(pod *corev1.Pod, source SourceInfo) error {
	if pod.UID != "" {
		return nil
	}
	content, err := json.Marshal(pod)
	if err != nil {
		return fmt.Errorf("encode Pod to compute its UID: %w", err)
	}
	hash := sha256.New()
	for _, part := range [][]byte{content, []byte(source.NodeName), []byte(source.Source), []byte(source.Location)} {
		// The length separates the parts.
		fmt.Fprintf(hash, "%d:", len(part))
		hash.Write(part)
	}
	pod.UID = types.UID(hex.EncodeToString(hash.Sum(nil)[:16]))
	return nil
}
